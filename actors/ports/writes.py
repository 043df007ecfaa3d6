"""Decisions about Spark writes, and the port of the store that makes them.

A write is decided once, in the cold store: every sealed stage is known there, and publish, abort
and expiry compete for one row. Daemons that share the store may each have stages of a write. Every
daemon carries out a decision for its own stages, in its journal (actors/writes/).

As with a `ColdQueue`, a step happens as a whole or not at all, is completed once it has begun, and
is durable when it returns. StoreUnavailable: it is unknown whether the step was taken, and
repeating it is harmless. Ages are milliseconds until now; times are the store's clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

VERDICTS_MAX: Final = 1000
"""For how many writes decisions are read in one step."""


class SealedStage(NamedTuple):
    """A complete stage that is durable in the journal of the daemon that names it."""

    stage: bytes
    runs: int
    items: int
    queues: tuple[str, ...]


class Published(NamedTuple):
    """The result of a publish."""

    outcome: Literal["published", "duplicate"]
    write: bytes | None
    """The write that is visible now; None: a duplicate of a write that is forgotten."""
    items: int = 0
    published_ms: int = 0


class LastVersion(NamedTuple):
    """The highest version of an application that a journal knows: the cold store may be lost."""

    version: int
    write: bytes
    published: Published | None
    """None: that write is forgotten."""


DECIDED: Final = ""
"""Names writes in a wake of the shared store; not a valid queue name."""


@dataclass(frozen=True, slots=True)
class WriteView:
    """What one journal knows about a write, for a request about it."""

    phase: Literal["open", "published", "aborted"]
    """Open also if the journal does not know it."""
    items: int
    """Items that are staged here, or were published."""
    published: Published | None
    sealed: tuple[SealedStage, ...]
    """Those of the stages that were asked for."""
    last: LastVersion | None
    """Of the application that was asked for."""


class PublishWish(NamedTuple):
    write: bytes
    stages: tuple[bytes, ...]
    app: str | None
    version: int | None
    here: WriteView


class OpenWrite(NamedTuple):
    """A write with stages in one journal, which has not carried out a decision about it."""

    write: bytes
    heard_ms: int
    """By this host's clock."""
    is_kept: bool
    """It may have ended: the journal's records of it were damaged."""


class Unheard(NamedTuple):
    """How long one daemon has heard nothing of a write that is open there."""

    write: bytes
    age_ms: int
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a write, as far as it concerns one daemon."""

    write: bytes
    is_published: bool
    at_ms: int
    stages: tuple[bytes, ...] = ()
    """The stages of this daemon that are published. All others are dropped."""
    items: int = 0
    """Items in these stages."""
    queues: tuple[str, ...] = ()
    app: str | None = None
    version: int | None = None


class Decided(NamedTuple):
    """The decision about a publish."""

    published: Published
    verdict: Verdict | None
    """What it means for this daemon; None: its journal has published the write before."""


class Aborted(NamedTuple):
    outcome: Literal["aborted", "published"]
    items: int
    """How many were dropped, or published."""


class WritePart(NamedTuple):
    """The outcomes, in one journal, of the items of one write that were published there."""

    write: bytes
    delivered: int = 0
    dropped: int = 0
    deleted: int = 0
    lost: int = 0
    is_over: bool = False
    """The journal holds none of them any more."""


@dataclass(frozen=True, slots=True)
class SharedReceipt:
    """A published write, and the outcomes of its items in the journals."""

    write: bytes
    published_ms: int
    app: str | None
    version: int | None
    queues: tuple[str, ...]
    accepted: int
    own: WritePart
    """As last reported by this daemon's journal."""
    others: WritePart
    """The sum of all other journals."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A published write, and the outcomes of its items in all journals. Items that have moved to
    the cold store have none here."""

    write: bytes
    published_ms: int
    app: str | None
    version: int | None
    queues: tuple[str, ...]
    accepted: int
    delivered: int
    dropped: int
    deleted: int
    lost: int


class Decisions(Protocol):
    async def seal(self, write: bytes, stage: SealedStage) -> None:
        """This daemon has the stage. Refused (STAGE_OVER) if the write was decided without it."""

    async def drop(self, write: bytes, stage: bytes) -> bool:
        """Excludes the stage from its write. False: it is published, and stays so."""

    async def publish(self, wish: PublishWish) -> Decided:
        """Makes exactly these stages visible, on any daemon. Refused: nothing is changed."""

    async def abort(self, write: bytes, items: int) -> Aborted:
        """Drops the write, unless it is published. `items`: how many of them this daemon has."""

    async def expire(self, heard: Sequence[Unheard], ttl_ms: int) -> list[bytes]:
        """Notes when this daemon last heard of its open writes. Then drops all writes that no
        daemon has heard of for that long; returns which."""

    async def verdicts(self, open_here: Sequence[bytes]) -> list[Verdict]:
        """Decisions about these writes, and about stages of this daemon that it has not applied; at
        most `VERDICTS_MAX`."""

    async def applied(self, writes: Sequence[bytes]) -> None:
        """This daemon's journal has recorded the decisions about these writes."""

    async def unfinished(self) -> list[bytes]:
        """Published writes of which this daemon's journal may still hold items."""

    async def note_parts(self, parts: Sequence[WritePart]) -> None:
        """Records what this daemon's journal reports now, also about writes that were published
        elsewhere and have items here since."""

    async def receipt(self, write: bytes) -> SharedReceipt | None:
        """None: the write is not published, or unknown."""

    async def forget(self, age_ms: int) -> int:
        """Forgets writes that ended this long ago and that every daemon has applied; how many."""
