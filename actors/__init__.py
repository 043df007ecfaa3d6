"""The actors, one to a file, and the words they share."""
