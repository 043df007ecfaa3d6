"""The spooler: the only owner of the journal on this host's disk.

The room owns intake, commits, leases of runs, marks, staged writes and the books of the journal.
Read messages.py (what can be asked), spooler.py (the loop), intake.py, backlog.py and lending.py
(what waits and who gets it), loans.py and ledger.py (outcomes and books), staging.py with
writes.py, then recovery.py, upkeep.py and reading.py. client.py is how other rooms ask; report.py
answers STATS.
"""
