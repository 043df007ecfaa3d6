"""Metrics: observes every actor and owns no work.

The room owns the latest snapshot and the samples of the last hour. Read snapshot.py (what is
shown), metrics.py (how it is made), flow_states.py, samples.py, then forecast.py.
"""
