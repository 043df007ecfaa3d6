"""Where Spark looks for data sources: `format("forebay")` works without `register`.

Spark imports every installed module whose name begins with `pyspark_` when a session begins, and
takes its `DefaultSource`.
"""

from forebay.spark.source import ForebaySource as DefaultSource

__all__ = ["DefaultSource"]
