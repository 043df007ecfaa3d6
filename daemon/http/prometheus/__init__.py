"""The answer to GET /metrics."""
