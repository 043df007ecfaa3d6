"""The `http` handler: requests over kept connections, and how answers are read."""
