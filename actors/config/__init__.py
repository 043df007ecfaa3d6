"""Settings of the daemon and of queues, and the definitions in force.

The package owns the catalogue of queues and the book of definitions, which combines those of the
configuration with those made at run time. Read section.py, settings.py, queue.py and handlers.py
(the models), presets.py (handlers for known APIs), book.py, catalogue.py, then schedules.py with
grids.py, and triggers.py.
"""
