"""Told of every outcome: the event log, the history, tallies, latencies, notifications."""
