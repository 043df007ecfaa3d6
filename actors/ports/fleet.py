"""The owners' side of a warm queue that daemons share, beyond the `WarmQueue` port.

A slice can be leased only while its owner is valid. Outcomes of another daemon's runs are posts in
its mailbox (actors/workers/posts.py). `generation` tells whether the server still has what it was
given. Every method raises StoreUnavailable as those of the port do.
"""

from collections.abc import Sequence
from typing import Protocol

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
