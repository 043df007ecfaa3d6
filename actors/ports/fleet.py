"""What a warm queue that daemons share offers beyond the port: its owners' side.

A slice is leased only while its owner is valid. Outcomes of another daemon's runs are posts in its
mailbox (actors/workers/posts.py). `generation` tells whether the server still has what it was
given. Every method raises StoreUnavailable as those of the port do.
"""

from collections.abc import Sequence
from typing import Protocol

import trio

from actors.ports.tiers import WarmQueue


class Present(Protocol):
    """What is there of one of this daemon's runs, under one loan."""

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
        """Hears news; others are told sooner while it runs."""

    async def close(self) -> None: ...

    async def generation(self) -> str:
        """When it has changed, all that was entered before is lost."""

    async def keep_valid(self, queues: Sequence[str], valid_s: float) -> None:
        """Runs of this daemon's journal may be leased for so long from now."""

    async def keep_rows_valid(self, queue: str, locks: Sequence[bytes], valid_s: float) -> None:
        """The same for rows of the cold store that were acquired under these locks."""

    async def present(self, queue: str) -> Sequence[Present]:
        """What this daemon's journal has there."""

    async def rows_present(self, queue: str) -> set[tuple[bytes, bytes]]:
        """Row and lock of all rows of the cold store that are there, whoever acquired them."""

    async def mail_queues(self) -> list[str]:
        """Those where this daemon has, or had, entries or mail."""

    async def mail(self, queue: str) -> list[bytes]:
        """The oldest posts for this daemon, which stay where they are."""

    async def mail_done(self, queue: str, count: int) -> None:
        """Removes the first of those that were read: they are recorded."""
