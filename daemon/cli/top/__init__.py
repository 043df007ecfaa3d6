"""`forebay top`."""
