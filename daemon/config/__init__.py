"""Reads the configuration from YAML, environment and flags, and reports where problems are."""
