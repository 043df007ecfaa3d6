"""The `file` handler: lines and Parquet files that land whole."""
