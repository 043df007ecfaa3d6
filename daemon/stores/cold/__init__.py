"""What both cold stores have in common."""
