"""A fleet of real daemons that share one Valkey and one PostgreSQL, and what is done to them."""
