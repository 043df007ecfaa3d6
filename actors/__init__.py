"""The actors: one package per actor or shared concept. Imports go downwards only.

From top to bottom: ingest, control, metrics, cron, fleet, keys, workers, breaker, observers, tiers,
spooler, ports, config, model. To follow a run, read ingest, spooler, tiers, workers; model has the
vocabulary.
"""
