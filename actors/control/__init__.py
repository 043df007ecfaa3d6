"""The operations of the control plane, one file per subject, for operators and their tools.

The package owns nothing but the jobs on dead letters: every operation is a step of another actor.
Read control.py (the door: the table of operations), fields.py (how a request is read), then the
file of a subject: queues.py; items.py with item_find.py, item_view.py, item_search.py and
item_change.py; dead_groups.py and dead_jobs.py; purge.py, stats.py, streams.py, keys.py, writes.py,
schedules.py, triggers.py, fleet.py.
"""
