"""`make bench-spark`: the Spark sink and source, beside what else a job could write to."""
