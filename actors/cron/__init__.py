"""Schedules and triggers: items that are made at given times or from other items.

The package owns the look-ahead of schedules, the polls of triggers and the watch over their jobs;
ticks and claims belong to the cold store. Read cron.py (the door), look_ahead.py (which ticks to
install) with schedules.py and last_ticks.py, then trigger_ports.py, trigger_watch.py, triggers.py
and trigger_jobs.py.
"""
