"""Servers that behave as the documentation of vendors says, and answers that vendors give."""
