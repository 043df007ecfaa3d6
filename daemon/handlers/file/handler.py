"""The file handler: appends one JSON object per line, for landing zones and for inspection.

All senders of a handler share one file, and one thread at a time works on it. An item counts as
delivered when its line is written, and synced if `fsync` is set. A line in a `.part` file is safe:
after a crash the next start finishes the file (see landing.py). After a crash between writing and
settling, items are written again, elsewhere, with the same ids.

A keeper task, which lasts from the first sender to `aclose`, finishes a file on time even if
nothing more arrives. It also finishes files that crashes have left.

A thread cannot be stopped: a write that is not done at the deadline counts as failed, holds the
handler's only thread until the disk answers, and may still end up in the file.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from actors.config.handlers import FileHandler
from actors.model.outcomes import Failure, Report
from actors.model.slices import Slice
from actors.model.units import format_duration
from actors.ports.handler import Pace, Prepared, Sender
from daemon.handlers.file.landing import Landing
from daemon.handlers.file.line_files import GrowingFile, Lines, RolledFiles
from daemon.handlers.items import Encoded, all_failed, encode_batch

log = structlog.get_logger()

CLOSE_S: Final = 5.0
"""How long closing the last file may take; the next start finishes a file that is not closed."""
PAUSE_S: Final = 5.0
"""How long the keeper waits before it retries."""

T = TypeVar("T")


class FileDelivery:
    def __init__(self, queue: str, settings: FileHandler) -> None:
        self._queue = queue
        self._path = settings.path_for(queue, "{time}")
        self._limiter = trio.CapacityLimiter(1)
        self._rolled: RolledFiles | None = None
        self._lines: Lines
        if "{time}" in settings.path.name:
            self._lines = self._rolled = RolledFiles(
                Landing(queue, settings),
                bytes_max=settings.roll_bytes,
                age_max_s=settings.roll_interval,
                fsync=settings.fsync,
            )
        else:
            self._lines = GrowingFile(settings.path_for(queue), fsync=settings.fsync)
        self._keeper: trio.CancelScope | None = None
        self._written = trio.Event()
        self.attended = trio.Event()
        """Set when the keeper has finished all due files; for tests."""
        self.destination = f"file:{self._path}"
        self.batch_items = settings.batch_items
        self.batch_bytes = settings.batch_bytes
        self.timeout_s = settings.timeout

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        content = encode_batch(batch, "ndjson")
        return Prepared(batch, content, content.rejected)

    def open_sender(self, pace: Pace) -> Sender:
        if self._rolled is not None and self._keeper is None:
            self._keeper = trio.CancelScope()
            # Not in a nursery of the workers: the keeper lasts as long as the handler.
            trio.lowlevel.spawn_system_task(self._keep, self._rolled, self._keeper)
        return FileSender(self)

    async def aclose(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        with trio.move_on_after(CLOSE_S, shield=True):
            await self._in_thread(self._lines.close)

    async def send(self, prepared: Prepared) -> Report:
        content: Encoded = prepared.content
        if not content.body:
            await trio.lowlevel.checkpoint()
            return Report(prepared.rejected)
        failure = Failure(f"{self._path}: not written after {format_duration(self.timeout_s)}")
        with trio.move_on_after(self.timeout_s):
            try:
                await self._in_thread(partial(self._lines.write, content.body, trio.current_time()))
            except OSError as error:
                failure = Failure(f"{self._path}: {error.strerror}")
            else:
                self._written.set()
                return Report(prepared.rejected)
        return all_failed(prepared, content.places, failure)

    async def _keep(self, files: RolledFiles, scope: trio.CancelScope) -> None:
        is_failing = False
        with scope:
            while True:
                self._written = trio.Event()
                with trio.move_on_at(files.due_s):
                    await self._written.wait()
                    continue
                try:
                    await self._in_thread(partial(files.attend, trio.current_time()))
                except OSError as error:
                    # Lines on disk are safe meanwhile.
                    if not is_failing:
                        log.error("file.finish_failed", queue=self._queue, error=str(error))
                    is_failing = True
                    await trio.sleep(PAUSE_S)
                else:
                    is_failing = False
                    self.attended.set()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)


class FileSender:
    """All share the handler's file."""

    def __init__(self, delivery: FileDelivery) -> None:
        self._delivery = delivery

    async def send(self, prepared: Prepared) -> Report:
        return await self._delivery.send(prepared)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
