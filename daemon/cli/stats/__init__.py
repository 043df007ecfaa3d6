"""`forebay stats`."""
