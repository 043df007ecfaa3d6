"""What settlement tells the observers: leases that ended together, and their conclusions.

An observer keeps what it hears in memory and returns at once; it never fails a settlement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from actors.model.outcomes import Conclusion
from actors.observers.events import Sending
from actors.ports.tiers import Leased


@dataclass(frozen=True, slots=True)
class Batch:
    """Leases of one queue that ended together, each with its conclusion."""

    queue: str
    pairs: Sequence[tuple[Leased, Conclusion]]
    answers: Sequence[bool]
    """False: the lease had run out before, and the conclusion changed nothing."""
    at_ms: int
    sending: Sending | None = None
    """How a worker sent it; None: a consumer pulled it."""

    @property
    def ours(self) -> Iterator[tuple[Leased, Conclusion]]:
        """The pairs whose lease still stood."""
        return (pair for pair, is_ours in zip(self.pairs, self.answers, strict=True) if is_ours)


class Observer(Protocol):
    def settled(self, batch: Batch) -> None: ...
