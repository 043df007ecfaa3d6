"""History: what was finished stays visible for a while, for people, where its queue wants that.

Items that end in the cold store go to its history in the transaction that ends them, by what
`keep` says. Items of the journal are noted here when their outcome has been told: a plain call
that adds to a list, as with the event log, so that whoever delivers never waits; rows of the list
go to the cold store a moment later, many in one transaction. Owns that list, its writer, and the
forgetting: once a minute, what is older than its queue's `retention`, in steps that others can get
between.

Nothing here is a promise, and the books do not know of it. Rows are dropped, and counted, when the
list is full or the cold store is away; a line in the log says when that begins and when it ends.
While the disk has less than twice the room at which pushes are refused, nothing is kept at all:
history is the first to stop. On `close` what is in the list is written; on cancel and in a crash it
is lost. Items that are delivered twice, because of a crash, are seen twice.

What it can't do: give disk space back. What is forgotten makes room in the cold store's file.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog
import trio

from actors.config.queue import QueueSettings
from actors.model.finished import FinishedRow, Keep, by_result, keeps_delivered
from actors.model.outcomes import Conclusion
from actors.model.slices import InCold
from actors.observers.observers import Batch
from actors.ports.tiers import ColdQueue, Leased, StoreUnavailable
from forebay.run import IDS

log = structlog.get_logger()

ROWS_MAX: Final = 1024
BYTES_MAX: Final = 16 * 1024 * 1024
"""What waits to be written, by the runs' bytes."""
WRITTEN_ROWS: Final = 256
WRITTEN_BYTES: Final = 4 * 1024 * 1024
"""What is written in one transaction; as much is also worth being written at once."""
FLUSH_S: Final = 1.0
FORGET_S: Final = 60.0
QUIET_S: Final = 10.0
"""When nothing was dropped for so long, it is over: a line in the log at each change, not more."""
ROOM_FACTOR: Final = 2


class History:
    def __init__(
        self,
        cold: ColdQueue,
        queue_settings: Callable[[str], QueueSettings],
        free_bytes: Callable[[], int],
        min_free_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`free_bytes`: of the disk; `min_free_bytes`: where pushes are refused."""
        self._cold = cold
        self._queue_settings = queue_settings
        self._free_bytes = free_bytes
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
        """Items, since rows began to be dropped."""
        self._lost_at = 0.0
        self.dropped_total = 0
        """Items."""

    def keep(self, queue: str) -> Keep:
        """What is kept of a queue now. For any thread."""
        if self._free_bytes() < self._free_bytes_min:
            return "none"
        return self._queue_settings(queue).history

    # What others call.

    def settled(self, batch: Batch) -> None:
        keep = self.keep(batch.queue)
        if keep == "none":
            return
        for leased, conclusion in batch.ours:
            part = leased.slice
            # A run that lists ids is made of others' items: of dead letters that were mended.
            has_failed = bool(part.errors) or bool(part.run.head.flags & IDS)
            if keeps_delivered(keep, has_failed):
                for row in finished_rows(leased, conclusion, batch.at_ms):
                    self._add(row)

    def noted(self, run_id: bytes) -> list[FinishedRow]:
        """Rows that are still to be written and may have items of this run, newest first."""
        waiting = (*self._being_written, *self._rows)
        return [
            row for row in reversed(waiting) if row.head.run_id == run_id or row.head.flags & IDS
        ]

    async def close(self) -> None:
        """Nothing more is noted; returns when what was noted is written, or dropped."""
        self._is_closing = True
        self._wanted.set()
        await self._closed.wait()

    def _add(self, row: FinishedRow) -> None:
        size = len(row.data) + len(row.result)
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
        """Until `close`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forget_old)
                task_status.started()
                is_last = False
                while not is_last:
                    with trio.move_on_after(FLUSH_S):
                        await self._wanted.wait()
                    # What is noted while rows are written is written as well.
                    is_last = self._is_closing
                    self._look_at_the_disk()
                    await self._write()
                nursery.cancel_scope.cancel()
        finally:
            self._closed.set()

    async def _write(self) -> None:
        """What is in the list, a part at a time."""
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
        is_paused = self._free_bytes() < self._free_bytes_min
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            (log.warning if is_paused else log.info)(
                "history.paused" if is_paused else "history.resumed",
                free_bytes=self._free_bytes(),
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
            retention_ms = round(self._queue_settings(queue).retention * 1000)
            before_ms = self._now_ms() - retention_ms
            while await self._cold.forget_history(queue, before_ms):
                pass


def finished_rows(leased: Leased, conclusion: Conclusion, now_ms: int) -> Iterator[FinishedRow]:
    """What was delivered of a slice of a journal; nothing where the cold store has noted it by
    itself."""
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
    """Rows, as many together as make a transaction of bearable length."""
    parts: list[list[FinishedRow]] = []
    size = 0
    for row in rows:
        size += len(row.data)
        if not parts or len(parts[-1]) >= WRITTEN_ROWS or size > WRITTEN_BYTES:
            parts.append([])
            size = len(row.data)
        parts[-1].append(row)
    return parts
