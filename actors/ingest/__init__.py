"""The Unix socket: connections, frames, windows, requests."""
