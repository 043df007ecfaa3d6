"""The spooler: the only owner of the journal on this host's disk.

The package owns intake, commits, loans of runs, marks, staged writes and the books of the journal.
Read messages.py (what can be asked), client.py (how other packages ask), spooler.py (the loop),
intake.py, backlog.py and lending.py (what waits, who gets it, and the loans), ledger.py (the
books), staging.py with writes.py, then recovery.py, upkeep.py, reading.py and report.py.
arrivals.py tells dispatch of new queues.
"""
