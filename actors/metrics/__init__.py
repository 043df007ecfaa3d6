"""Metrics: observes every actor and owns no work.

The package owns the latest snapshot and the samples of the last hour. Read books.py (the
journal and the tiers together), snapshot.py (what is shown), metrics.py (the door: how it is made),
flow_states.py, samples.py, then forecast.py.
"""
