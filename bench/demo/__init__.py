"""`make demo`: a Spark pipeline into the daemon, and out to a destination that fails on the way."""
