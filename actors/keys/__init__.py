"""Unique keys: the intake of keyed items and the arbiter between daemons."""
