"""The cold tier in PostgreSQL, which many daemons share."""
