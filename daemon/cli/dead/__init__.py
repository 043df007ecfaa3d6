"""`forebay dead`."""
