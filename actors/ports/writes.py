"""Writes whose stages are with many daemons: what they decide together, and the port to it.

A write is decided once, in the store that the daemons share: each of its stages that is sealed is
known there, and publishing, aborting and expiring are competing changes of one row. Every daemon
carries out what was decided about its own stages (actors/fleet/write_follower.py), whenever it
comes by.

As with a `ColdQueue`: a step has happened as a whole or not at all, is carried through once it has
begun, and is durable when it returns. StoreUnavailable: whether it was taken is not known, and
repeating it is harmless. Ages are milliseconds until now; times are the store's clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

VERDICTS_MAX: Final = 1000
"""Of so many writes decisions are read in one step."""


class SealedStage(NamedTuple):
    """A stage that is complete, and durable in the journal of the daemon that names it."""

    stage: bytes
    runs: int
    items: int
    queues: tuple[str, ...]


class Published(NamedTuple):
    """How publishing ended."""

    outcome: Literal["published", "duplicate"]
    write: bytes | None
    """The one that is visible now; None: a duplicate of one that is long forgotten."""
    items: int = 0
    published_ms: int = 0


class LastVersion(NamedTuple):
    """The highest version of an application that a journal knows of."""

    version: int
    write: bytes
    published: Published | None
    """None: that write is forgotten."""


DECIDED: Final = ""
"""What a wake of the shared store says that is about writes: no queue has this name."""


@dataclass(frozen=True, slots=True)
class WriteView:
    """What one journal knows of a write, for a request about it."""

    phase: Literal["open", "published", "aborted"]
    """Open also if it has never heard of it."""
    items: int
    """That are staged here, or were published."""
    published: Published | None
    sealed: tuple[SealedStage, ...]
    """Those that were asked for."""
    last: LastVersion | None
    """Of the application that was asked for."""


class PublishWish(NamedTuple):
    write: bytes
    stages: tuple[bytes, ...]
    app: str | None
    version: int | None
    here: WriteView


class OpenWrite(NamedTuple):
    """A write that one journal has stages of, and no decision about."""

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
    """What was decided about a write, as far as it concerns one daemon."""

    write: bytes
    is_published: bool
    at_ms: int
    stages: tuple[bytes, ...] = ()
    """Of this daemon's, those that are published. All others are dropped."""
    items: int = 0
    """In them."""
    queues: tuple[str, ...] = ()
    app: str | None = None
    version: int | None = None


class Aborted(NamedTuple):
    outcome: Literal["aborted", "published"]
    items: int
    """How many were dropped, or published."""


class Part(NamedTuple):
    """What has become, in one journal, of the items of one write that were published there."""

    write: bytes
    delivered: int = 0
    dropped: int = 0
    deleted: int = 0
    lost: int = 0
    is_over: bool = False
    """The journal holds none of them any more."""


@dataclass(frozen=True, slots=True)
class SharedReceipt:
    """A write that was published, and what has become of its items in the journals."""

    write: bytes
    published_ms: int
    app: str | None
    version: int | None
    queues: tuple[str, ...]
    accepted: int
    own: Part
    """As this daemon's journal told it last."""
    others: Part
    """The same of all others', together."""


class Decisions(Protocol):
    async def seal(self, write: bytes, stage: SealedStage) -> None:
        """This daemon has the stage. Refused (STAGE_OVER) if the write is decided without it."""

    async def drop(self, write: bytes, stage: bytes) -> bool:
        """The stage takes no part in its write. False: it is published, and stays so."""

    async def publish(self, wish: PublishWish) -> Published:
        """Makes exactly these stages visible, wherever they are. Refused: nothing is changed."""

    async def abort(self, write: bytes, items: int) -> Aborted:
        """Drops the write, unless it is published. `items`: what this daemon has of it."""

    async def expire(self, heard: Sequence[Unheard], ttl_ms: int) -> list[bytes]:
        """Notes when this daemon has heard of its open writes. Then drops all writes, of whatever
        daemon, of which nobody has heard for so long; which."""

    async def verdicts(self, open_here: Sequence[bytes]) -> list[Verdict]:
        """What is decided about these writes, and about stages of this daemon that it has not
        applied; `VERDICTS_MAX` at most."""

    async def applied(self, writes: Sequence[bytes]) -> None:
        """This daemon's journal has recorded what was decided about these."""

    async def unfinished(self) -> list[bytes]:
        """Published writes of which this daemon's journal holds items, for all that is known."""

    async def note_parts(self, parts: Sequence[Part]) -> None:
        """What this daemon's journal says now, also of writes that were published elsewhere and of
        which it has items since then."""

    async def note_mail(self, daemon: bytes, parts: Sequence[Part]) -> None:
        """What is in the mail of a daemon that does not read it, of these writes. It counts as one
        more journal's part, until that daemon asks what is unfinished."""

    async def receipt(self, write: bytes) -> SharedReceipt | None:
        """None: it is not published, or nothing is known of it."""

    async def forget(self, age_ms: int) -> int:
        """Forgets writes that ended so long ago and that every daemon has applied; how many."""
