"""The attempts of a queue's items: how many failed, and how long they took."""

from dataclasses import dataclass

from actors.model.latencies import NOTHING, Distribution


@dataclass(frozen=True, slots=True)
class Attempts:
    application: int = 0
    """Failed attempts: the destination was unreachable or unable, or no reason was given."""
    business: int = 0
    """Failed attempts: the worker or consumer reported that what the item asks for cannot be
    done."""
    processing: Distribution = NOTHING
    """Of items, from the start to the end of their send; for consumers, from lease to report."""

    def __add__(self, other: "Attempts") -> "Attempts":
        return Attempts(
            self.application + other.application,
            self.business + other.business,
            self.processing + other.processing,
        )
