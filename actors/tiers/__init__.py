"""Where a run waits for delivery: in memory (warm) or in the cold store.

The package owns the warm tier of this process, the tier that each queue is in, and the locks on
rows acquired from cold. Read tiers.py (the door), queue_tiers.py (the state), hysteresis.py (the
rule), router.py (journal to a tier), promoter.py with line.py (cold to warm), handover.py with
failover.py (journal to cold), warm.py with warm_queue.py (the memory tier), leasing.py with
fetch.py (what workers and consumers lease from), shared_warm.py with shared_promoter.py (a fleet's
warm tier), then streams.py and clock_watch.py.
"""
