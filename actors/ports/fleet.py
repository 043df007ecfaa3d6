"""The owners' side of a warm queue that daemons share, beyond the `WarmQueue` port.

A slice can be leased only while its owner is valid. Outcomes of another daemon's runs are posts in
its mailbox (actors/workers/posts.py). `generation` tells whether the server still has what it was
given. Every method raises StoreUnavailable as those of the port do.

`Members` is the list of the fleet's daemons, in the cold store that they share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import trio

from actors.ports.tiers import WarmQueue


class Present(Protocol):
    """What the shared queue has of one of this daemon's runs, under one loan."""

    @property
    def run_id(self) -> bytes: ...

    @property
    def position(self) -> int: ...

    @property
    def bits(self) -> int: ...

    @property
    def leased_bits(self) -> int: ...


class RemoteWarm(WarmQueue, Protocol):
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens for news; other daemons' changes are noticed sooner while it runs."""

    async def close(self) -> None: ...

    async def generation(self) -> str:
        """If it has changed, everything entered before is lost."""

    async def keep_valid(self, queues: Sequence[str], valid_s: float) -> None:
        """Runs of this daemon's journal may be leased for this long from now."""

    async def keep_rows_valid(self, queue: str, locks: Sequence[bytes], valid_s: float) -> None:
        """The same for rows of the cold store that were acquired under these locks."""

    async def present(self, queue: str) -> Sequence[Present]:
        """What this daemon's journal has entered there."""

    async def rows_present(self, queue: str) -> set[tuple[bytes, bytes]]:
        """Row and lock of all rows of the cold store that are there, acquired by any daemon."""

    async def mail_queues(self) -> list[str]:
        """The queues where this daemon has, or had, entries or mail."""

    async def mail(self, queue: str) -> list[bytes]:
        """The oldest posts for this daemon; they stay in the mailbox."""

    async def mail_done(self, queue: str, count: int) -> None:
        """Removes the first `count` posts, which were read and recorded."""


MemberState = Literal["running", "draining", "stopped"]


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a daemon reports about itself."""

    state: MemberState = "running"
    backlog: int = 0
    """Items that its journal holds, staged ones included, and has not handed over."""
    accepted_per_s: float = 0.0
    delivered_per_s: float = 0.0
    unreachable: tuple[str, ...] = ()
    """The stores that it cannot reach, other than the one with this list."""


class MemberNote(NamedTuple):
    """A report, and ages on this daemon's own clock: the store turns them into its own times."""

    report: MemberReport
    up_ms: int
    is_first: bool = True
    """No note of this process is known to be stored. Later ones keep the time of its start."""
    hand_over_age_ms: int | None = None
    """None: this process has handed nothing over. The time of an earlier process is kept."""


@dataclass(frozen=True, slots=True)
class Member:
    """A daemon of the fleet, as it was last seen. All times are on the store's clock."""

    daemon: bytes
    host: str
    version: str
    started_ms: int
    seen_ms: int
    last_hand_over_ms: int
    """0: it has handed nothing over yet."""
    report: MemberReport


class MemberList(NamedTuple):
    now_ms: int
    """The store's clock when the list was read."""
    members: Sequence[Member]


class SharedCounts(NamedTuple):
    """What this daemon has ever done in the shared store itself."""

    accepted: int
    """Items that came into the store without passing through a journal."""
    delivered: int


class Members(Protocol):
    """Every method is one step, and raises StoreUnavailable. Nothing here is durable at once: what
    is lost with the server's last moments is written again by the next note."""

    async def counts(self) -> SharedCounts: ...

    async def note(self, note: MemberNote) -> None:
        """Writes this daemon's row; it was seen now."""

    async def all(self) -> MemberList: ...

    async def forget(self, daemon: bytes, unseen_ms: int) -> bool:
        """Removes a daemon that was not seen for this long; False: it was, or is not listed."""

    async def sweep(self, unseen_ms: int) -> int:
        """Removes daemons that stopped with an empty backlog this long ago; returns how many."""
