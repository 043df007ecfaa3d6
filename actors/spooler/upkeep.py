"""Upkeep: all work on the spool that no push waits for, on a thread of its own.

It writes the indexes of sealed chunks, prepares the next chunk and the spares, frees chunks without
held items, writes `spool.meta` and the draft of the next index, and measures the free disk space. A
part of the spooler: it runs in the spooler's nursery and touches the ledger only between awaits.

A failed step is tried again a moment later; no stored run depends on it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
import trio

from actors.ports.journal import Journal, Room
from actors.spooler.ledger import Ledger


@dataclass(slots=True)
class SpoolCounts:
    """Counts of the spooler since the daemon started, for the metrics.

    Plain numbers that its parts add to, per group or per run. Like all counts since the start they
    begin at 0 after a restart; the books are what persists.
    """

    runs: int = 0
    """Stored runs, including staged ones."""
    bytes: int = 0
    """Their size on disk."""
    flushes: int = 0
    """Commits: groups of runs, marks or records, each with at most a sync or two."""
    chunk_rotations: int = 0
    """Chunks that came into use."""
    chunks_abandoned: int = 0
    """Chunks that were given up because a write or a sync had failed."""
    meta_syncs: int = 0
    """How many times `spool.meta` was replaced."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused items, by the code that answered their push."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Items that were stored and then removed undelivered, by reason."""


log = structlog.get_logger()

UPKEEP_S: Final = 0.25
FREE_S: Final = 0.5
"""Chunks are freed together: each time costs five syncs, which slow pushes down."""


class Upkeep:
    def __init__(
        self,
        journal: Journal,
        ledger: Ledger,
        recent: Callable[[], dict[bytes, int]],
        meta_interval_s: float,
        min_free_bytes: int,
        counts: SpoolCounts | None = None,
    ) -> None:
        self._counts = counts if counts is not None else SpoolCounts()
        self._journal = journal
        self._ledger = ledger
        self._recent = recent
        self._meta_interval_s = meta_interval_s
        self._min_free_bytes = min_free_bytes
        self._limiter = trio.CapacityLimiter(1)
        self._wanted = trio.Event()
        self._meta: tuple[int, int, int, int] | None = None
        self._meta_due = 0.0
        self._free_due = 0.0
        self._failing: set[str] = set()
        self.room = Room(free_bytes=2**62, spares=0, quarantine_bytes=0)

    @property
    def disk_is_low(self) -> bool:
        return self.room.free_bytes < self._min_free_bytes

    def hurry(self) -> None:
        """Wakes the loop: there is work now."""
        self._wanted.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        # Runs that are accepted must be able to drain, so their marks need reserved space.
        await self._try(self._look)
        await self._try(self._keep_ballast)
        task_status.started()
        while True:
            for step in (self._tidy, self._prepare, self._look, self._free_dead_chunks):
                await self._try(step)
            await self._try(self._keep_ballast)
            await self._try(self._write_hints)
            with trio.move_on_after(UPKEEP_S):
                await self._wanted.wait()
            self._wanted = trio.Event()

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """Runs one step; its failure does not stop the others."""
        name = step.__name__.strip("_")
        try:
            await step()
        except OSError as error:
            if name not in self._failing:
                log.error("spooler.upkeep_failed", step=name, error=str(error))
            self._failing.add(name)
        else:
            self._failing.discard(name)

    async def _tidy(self) -> None:
        await self._call(self._journal.write_indexes)

    async def _prepare(self) -> None:
        await self._call(self._journal.prepare)

    async def _keep_ballast(self) -> None:
        await self._call(self._journal.keep_ballast)

    async def _look(self) -> None:
        self._see(await self._call(self._journal.look))

    async def _free_dead_chunks(self) -> None:
        if trio.current_time() < self._free_due:
            return
        dead = self._ledger.dead_chunks()
        if dead:
            self._free_due = trio.current_time() + FREE_S
            base = self._ledger.base_without(dead)
            await self._call(self._journal.free, dead, base, self._recent())
            self._ledger.forget(dead)
            log.debug("spooler.chunks_freed", chunks=len(dead))

    async def _write_hints(self) -> None:
        if trio.current_time() < self._meta_due:
            return
        self._meta_due = trio.current_time() + self._meta_interval_s
        ledger = self._ledger
        meta = (
            ledger.reader_offset(),
            ledger.writer_offset,
            ledger.live_runs,
            ledger.live_bytes,
        )
        if meta != self._meta:
            await self._call(self._journal.write_meta, *meta)
            self._meta = meta
            self._counts.meta_syncs += 1
        await self._call(self._journal.write_draft)

    def _see(self, room: Room) -> None:
        was_low = self.disk_is_low
        self.room = room
        if was_low != self.disk_is_low:
            (log.error if self.disk_is_low else log.info)(
                "spooler.disk_low" if self.disk_is_low else "spooler.disk_has_room",
                free_bytes=room.free_bytes,
                min_free_bytes=self._min_free_bytes,
            )

    async def _call(self, work: Callable[..., Any], *args: object) -> Any:
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)
