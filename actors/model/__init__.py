"""The vocabulary of all actors: plain data and pure functions, no I/O.

The package owns no state. Read runs.py, slices.py and outcomes.py (what moves), states.py with
moves.py (the state machine), books.py (what must balance), failures.py, keys.py,
finished.py, then the small ones: clock.py, units.py, masking.py, patterns.py, refusals.py.
"""
