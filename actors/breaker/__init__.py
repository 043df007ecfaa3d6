"""Circuit breakers, one per destination.

The package owns the state of every breaker. Read state.py (the pure state machine), then breaker.py
(its owner, which admits sends and runs the timer).
"""
