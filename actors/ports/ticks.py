"""Ticks in the cold store: how far each schedule's are installed, and how that is changed.

A schedule has one mark, in the store that all daemons of a fleet share. Whoever installs ticks
says which mark the decision was made on, and moves it in the same transaction; if it has moved
meanwhile nothing is changed, so that each moment of a schedule is decided on once, by one daemon,
however slow the others are. A tick is an item of the schedule's queue, a run of one that is due at
its time, with the key `{name}/{fingerprint}/{epoch ms}`: the table of keys arbitrates it as well
(policy `ignore`), whatever the queue's own policy, and ticks are found by their keys again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from actors.model.keys import KeyRule, Offer, Phase

TICK_RULE: Final = KeyRule("ignore")
TICK_DIGITS: Final = 13
"""Of the milliseconds in a key, so that keys sort as their times do; enough until 2286."""


class TickMark(NamedTuple):
    """How far a schedule's ticks are installed."""

    queue: str
    fingerprint: str
    """Of the schedule's settings."""
    until_ms: int
    """What becomes of ticks up to here is decided."""
    seen_ms: int
    """When a daemon last looked after it."""
    since_ms: int = 0
    """From when on its ticks are those of this configuration."""
    missed: int = 0
    """Ticks that nobody was there for, and that were given up."""
    missed_ms: int = 0
    """When the latest of them would have been."""


class Marks(NamedTuple):
    now_ms: int
    """The store's clock: the one by which items are due."""
    by_name: Mapping[str, TickMark]


class Span(NamedTuple):
    """Ticks later than `after_ms`, and not later than `until_ms`."""

    after_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class TickChange:
    """One schedule's next step: all of it, or none if `before` is no longer so."""

    name: str
    before: TickMark | None
    after: TickMark | None
    """None: the schedule is gone."""
    drop: Span | None = None
    """Of the ticks of `before`, those to be deleted; what has started is left alone."""
    offers: tuple[Offer, ...] = ()
    missed_ms: int | None = None
    """What is deleted was missed, the latest of it at this time."""

    def mark_after(self, dropped: int) -> TickMark | None:
        """The mark that is left when so many ticks were deleted."""
        if self.after is None or self.missed_ms is None or not dropped:
            return self.after
        missed_ms = max(self.after.missed_ms, self.missed_ms)
        return self.after._replace(missed=self.after.missed + dropped, missed_ms=missed_ms)


class Tick(NamedTuple):
    """One of a schedule, wherever it is."""

    queue: str
    key: bytes


class TickOutcome(NamedTuple):
    """None of it, where the mark had moved."""

    is_done: bool
    dropped: int = 0
    installed: int = 0


class TickStore(Protocol):
    """As with `ColdQueue`: each method is one transaction, carried through when it has begun;
    StoreUnavailable if it may not have happened."""

    async def marks(self) -> Marks: ...

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        """Durable on return, all in one transaction."""

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        """Where each of them is; None: it is not there, or not any more."""


def tick_key(name: str, fingerprint: str, tick_ms: int) -> bytes:
    return f"{name}/{fingerprint}/{tick_ms:0{TICK_DIGITS}}".encode()


def key_span(name: str, mark: TickMark, span: Span) -> tuple[bytes, bytes]:
    """Keys greater than the one, and not greater than the other."""
    last_ms = min(span.until_ms, 10**TICK_DIGITS - 1)
    return (
        tick_key(name, mark.fingerprint, max(0, span.after_ms)),
        tick_key(name, mark.fingerprint, max(0, last_ms)),
    )
