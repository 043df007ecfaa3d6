"""The HTTP side of the daemon: API, health, metrics and the page, on hypercorn and FastAPI."""
