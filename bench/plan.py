"""How long and how often to measure, and who is told how far it is."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    """Of each contender in each round."""
    rounds: int
    is_quick: bool = False
    """Smaller spools: to see that it works, not to quote."""

    def each_round(self, what: str) -> Iterator[int]:
        """The rounds; contenders take turns in each, so that all have the same machine."""
        for number in range(self.rounds):
            print(f"{what}, round {number + 1} of {self.rounds} …", file=sys.stderr, flush=True)
            yield number
