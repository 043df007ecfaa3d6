"""The event log: collects events and writes them in the background, never holding up the work.

It owns the events that are not written yet and the thread that writes them. Noting an event is a
plain call that adds to a list, not a message: workers must neither wait for a full channel nor pay
for a task switch, and a list that is swapped once per second is one hop for thousands of events.
Between two awaits trio runs one task, so only one task touches the list at a time. Past
`EVENTS_MAX` events are dropped and counted; the log says when that begins and ends, and a `lost`
event says how many.

Nothing here is guaranteed: events are written within a second and synced when their file is
finished. On `close` everything is written and the file is finished. On cancel, and in a crash,
unwritten events are lost; the restarted daemon finishes the file. A disk that takes nothing costs
events, and nothing else.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import structlog
import trio

from actors.config.observers import EventSettings
from actors.model.clock import Clock
from actors.model.masking import masked
from actors.observers.batch import Batch
from actors.observers.events import Event, EventsLost, Sending, StoreChanged, slices_ended
from actors.ports.thread import OwnThread

EVENTS_KEPT: Final = 1000


class Numbered(NamedTuple):
    number: int
    """From 1, in the order of noting."""
    row: dict[str, Any]


class EventRing:
    """The latest rare events, in memory, for pages and clients that watch.

    It holds events of breakers, stores, the daemon and queues that get workers: those that the
    event log also writes, if it is on. Bounded: a watcher that is too slow misses the oldest events
    and notices it by their numbers. Nothing is durable.
    """

    def __init__(self, kept: int = EVENTS_KEPT) -> None:
        self._events: deque[Numbered] = deque(maxlen=kept)
        self._latest = 0
        self._noted = trio.Event()

    @property
    def latest(self) -> int:
        """The number of the latest event; 0 if there was none."""
        return self._latest

    def note(self, event: Event) -> None:
        self._latest += 1
        self._events.append(Numbered(self._latest, masked(event.row())))
        self._noted.set()
        self._noted = trio.Event()

    def after(self, number: int) -> list[Numbered]:
        """The kept events with a higher number, oldest first."""
        return [event for event in self._events if event.number > number]

    async def wait_after(self, number: int) -> None:
        """Returns when there is an event with a higher number."""
        while self._latest <= number:
            await self._noted.wait()


log = structlog.get_logger()

FLUSH_S: Final = 1.0
FLUSH_EVENTS: Final = 8192
EVENTS_MAX: Final = 65536
"""About 30 MB."""
WATCH_S: Final = 1.0


class EventSink(Protocol):
    """The writer of events. All methods block and are called in one thread."""

    def write(self, events: Sequence[Event], now_s: float) -> None:
        """Writes events and rolls files that are due, also without events. After an OSError none of
        the events counts as written, and the next call may try again."""

    def close(self, now_s: float) -> None:
        """Finishes the current file."""


class EventLog:
    def __init__(
        self,
        settings: EventSettings,
        sink: EventSink | None,
        now_ms: Clock,
        also: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        """Without a sink nothing is written. `also` gets every rare event, sink or not."""
        self._also = also
        self._share = settings.share if sink is not None else 0.0
        self._mode = settings.mode
        self._sink = sink
        self._now_ms = now_ms
        self._thread = OwnThread("events")
        self._events: list[Event] = []
        self._full = trio.Event()
        self._is_closing = False
        self._closed = trio.Event()
        self._lost = 0
        """Events lost since the last successful write."""
        self._cannot_write = False
        self.written_total = 0
        self.dropped_total = 0

    @property
    def is_on(self) -> bool:
        return self._sink is not None

    def figures(self) -> dict[str, Any]:
        return {
            "mode": self._mode,
            "written_total": self.written_total,
            "dropped_total": self.dropped_total,
        }

    # Called by other actors.

    def settled(self, batch: Batch) -> None:
        if self.is_on and self._share:
            ours = list(batch.ours)
            sending = batch.sending
            if sending is None:
                sending = Sending("pull", sum(leased.slice.items for leased, _ in ours))
            self._add(slices_ended(batch.queue, sending, ours, batch.at_ms, self._share))

    def note(self, event: Event) -> None:
        """Notes a rare event, which is never sampled out."""
        self._also(event)
        if self.is_on:
            self._add([event])

    async def close(self) -> None:
        """Accepts no more events; returns when all are written."""
        self._is_closing = True
        self._full.set()
        await self._closed.wait()

    def _add(self, events: Sequence[Event]) -> None:
        if len(self._events) + len(events) > EVENTS_MAX:
            self._lose(len(events))
            return
        self._events += events
        if len(self._events) >= FLUSH_EVENTS:
            self._full.set()

    def _lose(self, events: int) -> None:
        if not self._lost and not self._cannot_write:
            log.warning("events.dropping", hint="the event log cannot be written fast enough")
        self._lost += events
        self.dropped_total += events

    # The actor.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until `close`."""
        task_status.started()
        if self._sink is None:
            self._closed.set()
            return
        self._thread.start()
        try:
            while not self._is_closing:
                with trio.move_on_after(FLUSH_S):
                    await self._full.wait()
                await self._write(self._sink)
            await self._write(self._sink)
            await self._finish(self._sink)
        finally:
            self._thread.stop()
            self._closed.set()

    async def _write(self, sink: EventSink) -> None:
        events, self._events = self._events, []
        if not self._is_closing:
            self._full = trio.Event()
        lost_before = self._lost
        try:
            await self._thread.call(sink.write, events, self._now_ms() / 1000)
        except OSError as problem:
            if not self._cannot_write:
                log.error("events.cannot_write", error=str(problem))
            self._cannot_write = True
            self._lose(len(events))
            return
        self.written_total += len(events)
        if self._cannot_write or (lost_before and self._lost == lost_before):
            self._keeps_up()

    def _keeps_up(self) -> None:
        """Ends an outage: nothing was lost while the last events were written."""
        log.info("events.written_again", lost=self._lost)
        lost, self._lost, self._cannot_write = self._lost, 0, False
        if lost:
            self._add([EventsLost(self._now_ms(), lost)])

    async def _finish(self, sink: EventSink) -> None:
        try:
            await self._thread.call(sink.close, self._now_ms() / 1000)
        except OSError as problem:
            log.error("events.cannot_write", error=str(problem))


async def watch_stores(
    events: EventLog, is_away: Callable[[], Mapping[str, bool]], now_ms: Clock
) -> None:
    """Notes when stores go away and come back, as seen by the actors that use them.

    Looks once per second, so that those actors need not report it; shorter outages may be missed.
    """
    before: Mapping[str, bool] = {}
    while True:
        after = is_away()
        for store, is_gone in after.items():
            if is_gone != before.get(store, False):
                events.note(StoreChanged(now_ms(), store, is_gone))
        before = after
        await trio.sleep(WATCH_S)
