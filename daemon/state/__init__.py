"""The daemon's own files: identity, lock, definitions made at run time, ballast."""
