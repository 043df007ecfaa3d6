"""Writes what is made from the table of operations: the command line's manifest, the typed client
and the reference. `python -m daemon.generate` writes them, `--check` compares them.
"""
