"""The `python` handler: a function in a process of its own."""
