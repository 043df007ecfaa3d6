"""What actors need from outside, as interfaces; `daemon/` implements them.

The package owns no state except presence.py and thread.py. Read tiers.py (warm, cold, dead
letters), journal.py, handler.py, watched.py (who notices an outage), then ticks.py,
trigger_jobs.py, writes.py and fleet.py.
"""
