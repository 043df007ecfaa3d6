"""Warm in Valkey beyond the port: a fleet, owners, failures, and what a fleet limits together."""
