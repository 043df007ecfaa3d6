"""Delivery: workers that send items to destinations, and consumers that pull them.

The package owns the worker groups, the rates of destinations and the leases of consumers. Read
workers.py (the door), dispatch.py (a group per queue), group.py with split_workers.py, sending.py
(one batch), retry.py (what follows from a failure), settlement.py (telling the owners), rate.py and
adaptive.py (how fast and how many), then pull.py with the files it uses.
"""
