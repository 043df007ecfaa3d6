"""What daemons share: rows of one cold store, and a warm queue that holds copies of some of them.

A row that is in the shared warm queue is locked under the epoch of that queue, until it is settled
or released: no daemon renews it. The epoch is a random value that is gone when the warm queue's
server forgets, so rows under another epoch are nowhere in warm.

`Members` is the list of the fleet's daemons, in the cold store that they share.

Every method raises StoreUnavailable as those of actors/ports/tiers.py do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import trio

from actors.model.slices import Slice
from actors.ports.tiers import ColdRow, Entered, Leased, Limits, WarmQueue


class RemoteWarm(WarmQueue, Protocol):
    """The warm queue that daemons share. Only slices of rows enter."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens for news; other daemons' changes are noticed sooner while it runs."""

    async def close(self) -> None: ...

    async def generation(self) -> str:
        """If it has changed, all queues are forgotten."""

    async def epoch(self, queue: str) -> bytes:
        """The epoch of a queue, which is made if it is not known."""

    def server_ms(self) -> int:
        """The server's time now, as far as it is known."""

    async def enter(
        self, queue: str, slices: Sequence[Slice], limits: Limits, before_ms: int | None = None
    ) -> Entered:
        """Enters slices of rows that are locked under the queue's epoch; items that are there
        already are left out. Raises StoreRefused, and enters nothing, if the server is full, the
        epoch is gone, or the server's time is past `before_ms`."""

    async def lease_rows(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str],
    ) -> list[tuple[Leased, bool]]:
        """As `lease`. True: an earlier lease of it has run out, so its items may be settled."""

    async def present(self, queue: str, rows: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """The queue's epoch, empty if it is not known, and the items of each row that are there."""

    async def take_turn(self, for_s: float) -> bool:
        """Whether no other daemon has had this turn within that time."""


class SharedRows(Protocol):
    """The steps of a shared cold store that a shared warm queue needs."""

    async def confirm(
        self, rows: Sequence[bytes], entering: Mapping[bytes, Sequence[bytes]]
    ) -> None:
        """As `ColdQueue.confirm`. `entering`: by epoch, rows that are locked under it at once."""

    async def acquire(
        self,
        queue: str,
        epoch: bytes,
        items_max: int,
        bytes_max: int,
        except_flows: frozenset[str],
    ) -> list[ColdRow]:
        """Locks the next due rows under an epoch; the last is cut to keep within `items_max`."""

    async def left(self, epoch: bytes, rows: Sequence[bytes]) -> Mapping[bytes, int]:
        """The items that rows still have, as bits; rows that are not locked under this epoch are
        left out."""

    async def entered(self, queue: str, epoch: bytes, age_s: float, rows_max: int) -> list[bytes]:
        """The rows that have been locked under the epoch for at least that long, oldest first."""

    async def end_epochs(self, queue: str, epoch: bytes, lease_s: float) -> int:
        """Rows that are locked under any other epoch are due again after `lease_s`; returns how
        many."""


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
