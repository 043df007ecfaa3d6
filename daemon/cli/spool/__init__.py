"""`forebay spool`."""
