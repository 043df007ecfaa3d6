"""Handlers that start processes or call other people's code, with real ones."""
