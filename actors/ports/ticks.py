"""Ticks in the cold store: how far each schedule's ticks are installed, and how that changes.

A schedule has one mark, in the store that all daemons of a fleet share. A daemon that installs
ticks names the mark its decision was based on, and moves it in the same transaction; if the mark
has moved meanwhile, nothing changes. So each moment of a schedule is decided once, by one daemon,
however slow the others are. A tick is an item of the schedule's queue: a run of one item, due at
its time, with the key `{name}/{fingerprint}/{epoch ms}`. The table of keys arbitrates it (policy
`ignore`), regardless of the queue's own policy, and ticks are found by their keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from actors.model.keys import KeyRule, Offer, Phase

TICK_RULE: Final = KeyRule("ignore")
TICK_DIGITS: Final = 13
"""Digits of the milliseconds in a key, so that keys sort like their times; enough until 2286."""


class TickMark(NamedTuple):
    """How far a schedule's ticks are installed."""

    queue: str
    fingerprint: str
    """Fingerprint of the schedule's settings."""
    until_ms: int
    """All ticks up to here are decided."""
    seen_ms: int
    """When a daemon last looked after it."""
    since_ms: int = 0
    """Since when its ticks follow this configuration."""
    missed: int = 0
    """Ticks that were given up because no daemon ran at their time."""
    missed_ms: int = 0
    """The time of the latest missed tick."""


class Marks(NamedTuple):
    now_ms: int
    """The store's clock, which decides when items are due."""
    by_name: Mapping[str, TickMark]


class Span(NamedTuple):
    """Ticks later than `after_ms` and not later than `until_ms`."""

    after_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class TickChange:
    """One schedule's next step: all of it, or nothing if `before` no longer holds."""

    name: str
    before: TickMark | None
    after: TickMark | None
    """None: the schedule is gone."""
    drop: Span | None = None
    """Which ticks of `before` are deleted; ticks that have started are left alone."""
    offers: tuple[Offer, ...] = ()
    missed_ms: int | None = None
    """The deleted ticks were missed, the latest at this time."""

    def mark_after(self, dropped: int) -> TickMark | None:
        """The mark after `dropped` ticks were deleted."""
        if self.after is None or self.missed_ms is None or not dropped:
            return self.after
        missed_ms = max(self.after.missed_ms, self.missed_ms)
        return self.after._replace(missed=self.after.missed + dropped, missed_ms=missed_ms)


class Tick(NamedTuple):
    """A tick of a schedule, in any state."""

    queue: str
    key: bytes


class TickOutcome(NamedTuple):
    """The result of a change; all zero if the mark had moved."""

    is_done: bool
    dropped: int = 0
    installed: int = 0


class TickStore(Protocol):
    """As with `ColdQueue`: each method is one transaction, completed once it has begun; raises
    StoreUnavailable if it may not have happened."""

    async def marks(self) -> Marks: ...

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        """Durable on return, all in one transaction."""

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        """The phase of each tick; None: it does not exist, or no longer."""


def tick_key(name: str, fingerprint: str, tick_ms: int) -> bytes:
    return f"{name}/{fingerprint}/{tick_ms:0{TICK_DIGITS}}".encode()


def key_span(name: str, mark: TickMark, span: Span) -> tuple[bytes, bytes]:
    """The range of keys: greater than the first, not greater than the second."""
    last_ms = min(span.until_ms, 10**TICK_DIGITS - 1)
    return (
        tick_key(name, mark.fingerprint, max(0, span.after_ms)),
        tick_key(name, mark.fingerprint, max(0, last_ms)),
    )
