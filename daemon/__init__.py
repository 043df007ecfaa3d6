"""Composition: the command line, the configuration, the wiring, sockets and stores."""
