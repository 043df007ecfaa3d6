"""Delivery: dispatch, worker groups, sending, retries, settlement, and consumers that pull."""
