"""Real servers for the tests: private, on Unix sockets, in temporary directories."""
