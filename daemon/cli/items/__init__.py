"""`forebay items`."""
