"""The stores: SQLite and PostgreSQL for cold, Valkey for warm, and how they are opened."""
