"""Where a run waits: the router, the promoter, the memory tier, hand-over and failover."""
