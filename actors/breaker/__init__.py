"""Circuit breakers: the state machine and its owner."""
