"""The `file` handler: writes JSON lines or Parquet files."""
