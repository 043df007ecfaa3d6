"""Settings of the daemon and of queues, and the definitions in force.

The package owns the catalogue of queues and the books of schedules and triggers, which combine the
configuration with definitions made at run time. Read section.py, settings.py, queue.py and
handlers.py (the models), presets.py (handlers for known APIs), catalogue.py, then schedules.py with
grids.py and schedule_book.py, triggers.py with trigger_book.py, and kept.py (how definitions are
read from disk).
"""
