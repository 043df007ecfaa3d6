"""Actors that are told of every outcome and never hold up delivery.

The package owns records about items, never the items: losing them loses no work. Read observers.py
(the door) with batch.py (what they are told), events.py with event_log.py, history.py, tallies.py
with attempts.py, failure_log.py, then notices.py (decisions) and notifier.py.
"""
