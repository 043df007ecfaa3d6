"""PostgreSQL as the cold tier: what is its own, beside the suites that every store passes."""
