"""The `python` handler: calls a function in the daemon's loop, a thread or a process."""
