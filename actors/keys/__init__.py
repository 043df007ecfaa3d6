"""Unique keys: at most one item of a queue holds a key.

The package owns the pushes that wait for a decision; the cold store owns the keys. Read keys.py
(the door), intake.py (pushes to keyed queues), then arbiter.py (the decisions of one step).
actors/model/keys.py has the rules.
"""
