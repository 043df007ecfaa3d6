"""History: keeps finished items visible for a while, for queues that ask for it.

Items that end in the cold store go to its history in the transaction that ends them, as `keep`
says. Items of the journal are noted here after their owner was told: a plain call that adds to a
list, as in the event log, so that workers never wait; a moment later the rows go to the cold store,
many in one transaction. It owns that list, its writer, and the expiry: once per minute it deletes
rows older than their queue's `retention`, in steps that other work can get between.

Nothing here is guaranteed, and the books do not include it. Rows are dropped and counted when the
list is full or the cold store is away; the log says when that begins and ends. While the disk has
less than twice the space at which pushes are refused, nothing is kept: history is the first to
stop. On `close` the list is written; on cancel and in a crash it is lost. Items that a crash
delivers twice appear twice.

It cannot give disk space back: deleted rows make room inside the cold store's file.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import structlog
import trio

from actors.config.catalogue import Catalogue
from actors.model.clock import Clock
from actors.model.finished import FinishedRow, Keep, by_result, keeps_delivered
from actors.model.outcomes import Conclusion
from actors.model.slices import InCold
from actors.observers.batch import Batch
from actors.ports.tiers import ColdQueue, Leased, StoreUnavailable
from forebay.run import IDS

log = structlog.get_logger()

ROWS_MAX: Final = 1024
BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the runs that wait to be written."""
WRITTEN_ROWS: Final = 256
WRITTEN_BYTES: Final = 4 * 1024 * 1024
"""Bytes per transaction; this much is also written at once."""
FLUSH_S: Final = 1.0
FORGET_S: Final = 60.0
QUIET_S: Final = 10.0
"""After this long without a drop, dropping counts as over: one log line per change."""
ROOM_FACTOR: Final = 2


class Disk(Protocol):
    @property
    def free_bytes(self) -> int: ...


class History:
    def __init__(
        self,
        cold: ColdQueue,
        catalogue: Catalogue,
        disk: Disk,
        min_free_bytes: int,
        now_ms: Clock,
    ) -> None:
        """`min_free_bytes`: below this pushes are refused."""
        self._cold = cold
        self._catalogue = catalogue
        self.disk = disk
        self._free_bytes_min = ROOM_FACTOR * min_free_bytes
        self._now_ms = now_ms
        self._rows: list[FinishedRow] = []
        self._being_written: list[FinishedRow] = []
        self._bytes = 0
        self._wanted = trio.Event()
        self._is_closing = False
        self._closed = trio.Event()
        self._is_paused = False
        self._lost = 0
        """Items lost since rows began to be dropped."""
        self._lost_at = 0.0
        self.dropped_total = 0
        """Items."""

    def keep(self, queue: str) -> Keep:
        """What is kept of a queue now. Safe in any thread."""
        if self.disk.free_bytes < self._free_bytes_min:
            return "none"
        return self._catalogue.settings_of(queue).history

    # Called by other actors.

    def settled(self, batch: Batch) -> None:
        keep = self.keep(batch.queue)
        if keep == "none":
            return
        for leased, conclusion in batch.ours:
            part = leased.slice
            # A run that lists ids was made of items of other runs: of edited dead letters.
            has_failed = bool(part.errors) or bool(part.run.head.flags & IDS)
            if keeps_delivered(keep, has_failed):
                for row in finished_rows(leased, conclusion, batch.at_ms):
                    self._add(row)

    def noted(self, run_id: bytes) -> list[FinishedRow]:
        """Rows that are not written yet and may have items of this run, newest first."""
        waiting = (*self._being_written, *self._rows)
        return [
            row for row in reversed(waiting) if row.head.run_id == run_id or row.head.flags & IDS
        ]

    async def close(self) -> None:
        """Accepts no more rows; returns when the noted ones are written or dropped."""
        self._is_closing = True
        self._wanted.set()
        await self._closed.wait()

    def _add(self, row: FinishedRow) -> None:
        # Rows of one run share its body: each item may have a result of its own.
        is_shared = bool(self._rows) and self._rows[-1].data is row.data
        size = len(row.result) + (0 if is_shared else len(row.data))
        is_full = len(self._rows) >= ROWS_MAX or self._bytes + size > BYTES_MAX
        if is_full and self._rows:
            self._drop([row], "rows come faster than they are written")
            return
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= WRITTEN_ROWS or self._bytes >= WRITTEN_BYTES:
            self._wanted.set()

    def _drop(self, rows: Sequence[FinishedRow], why: str) -> None:
        if not self._lost:
            log.warning("history.dropping", why=why)
        items = sum(row.bits.bit_count() for row in rows)
        self._lost += items
        self._lost_at = trio.current_time()
        self.dropped_total += items

    # The actor.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until `close`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forget_old)
                task_status.started()
                is_last = False
                while not is_last:
                    with trio.move_on_after(FLUSH_S):
                        await self._wanted.wait()
                    # Rows noted during a write are written by the next one.
                    is_last = self._is_closing
                    self._look_at_the_disk()
                    await self._write()
                nursery.cancel_scope.cancel()
        finally:
            self._closed.set()

    async def _write(self) -> None:
        """Writes the rows of the list, several per transaction."""
        rows, self._rows, self._bytes = self._rows, [], 0
        self._being_written = rows
        if not self._is_closing:
            self._wanted = trio.Event()
        for part in parts_of(rows):
            try:
                await self._cold.note_history(part)
            except StoreUnavailable as problem:
                self._drop(part, str(problem))
        self._being_written = []
        if self._lost and trio.current_time() - self._lost_at >= QUIET_S:
            log.info("history.kept_again", items_lost=self._lost)
            self._lost = 0

    def _look_at_the_disk(self) -> None:
        is_paused = self.disk.free_bytes < self._free_bytes_min
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            (log.warning if is_paused else log.info)(
                "history.paused" if is_paused else "history.resumed",
                free_bytes=self.disk.free_bytes,
                needed_bytes=self._free_bytes_min,
            )

    async def _forget_old(self) -> None:
        was_away = False
        while True:
            try:
                await self._forget()
                was_away = False
            except StoreUnavailable as problem:
                if not was_away:
                    log.warning("history.not_forgotten", error=str(problem))
                was_away = True
            await trio.sleep(FORGET_S)

    async def _forget(self) -> None:
        for queue in await self._cold.history_queues():
            retention_ms = round(self._catalogue.settings_of(queue).retention * 1000)
            before_ms = self._now_ms() - retention_ms
            while await self._cold.forget_history(queue, before_ms):
                pass


def finished_rows(leased: Leased, conclusion: Conclusion, now_ms: int) -> Iterator[FinishedRow]:
    """The delivered items of a journal's slice; none for the cold store, which notes its own."""
    slice_ = leased.slice
    run = slice_.run
    if isinstance(run.owner, InCold):
        return
    for bits, result in by_result(conclusion.delivered, conclusion.results):
        yield FinishedRow(
            run.head,
            run.data,
            bits,
            slice_.attempt + 1,
            "delivered",
            now_ms,
            slice_.errors,
            conclusion.holder,
            result,
        )


def parts_of(rows: Sequence[FinishedRow]) -> list[list[FinishedRow]]:
    """Groups rows so that each group makes a transaction of acceptable length."""
    parts: list[list[FinishedRow]] = []
    size = 0
    for row in rows:
        if not parts or parts[-1][-1].data is not row.data:
            size += len(row.data)
        if not parts or len(parts[-1]) >= WRITTEN_ROWS or size > WRITTEN_BYTES:
            parts.append([])
            size = len(row.data)
        parts[-1].append(row)
    return parts
