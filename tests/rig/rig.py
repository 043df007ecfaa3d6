"""The daemon as daemon/app.py builds it, without clients and signals.

Real parts: the journal on disk, SQLite, warm in this process, and every actor between them. Only
the destinations are scripted (tests/rig/scripted.py). The disk and the cold store can be
told to fail. A life ends in good order (`stop`), or as by SIGKILL (`crash`): from then on nothing
reaches the disk, and the next life finds what was there.

Waits are for events of destinations, or for the books, which are asked again and again; nothing
depends on how long anything takes.
"""

import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import trio

from actors.config.queue import QueueSettings
from actors.config.settings import Settings
from actors.cron.cron import Cron
from actors.model.clock import wall_ms
from actors.ports.handler import Handler
from actors.ports.tiers import DeadFilter, DeadLetter, Fill
from actors.spooler import spooler as spooler_module
from actors.spooler.messages import (
    Append,
)
from actors.tiers import warm_queue
from actors.tiers.line import Promotion
from actors.tiers.queue_tiers import QueueMemory
from actors.tiers.warm import MemoryWarm
from actors.workers import dispatch as dispatch_module
from daemon.app import build, live
from daemon.http.server import HttpServer
from daemon.journal.journal import Journal
from daemon.stores.open import local_stores
from daemon.stores.sqlite.store import SqliteCold
from forebay.errors import Refused
from forebay.ids import format_item_id
from forebay.run import encode_run, read_head
from forebay.wire import Outcome
from tests.actors.spooler.spooling import Inbox, spool_settings
from tests.crash.failing_files import Call, FailingFiles
from tests.eventually import at_once, eventually
from tests.rig.fragile_cold import FragileCold, as_port
from tests.rig.scripted import Destination, ScriptedHandler

DRAIN_S = 600.0
"""A daemon that stops in good order has all the time that it needs."""
BALLAST_BYTES = 64 * 1024
READS: frozenset[Call] = frozenset({"open_read", "read", "read_file"})

QUICK: dict[str, Any] = {
    "handler": {"type": "null"},
    "backoff": {"initial": "1ms", "max": "1ms", "jitter": 0},
    "breaker": {"enabled": False},
    "workers": {"count": 1},
}
"""One worker, so that there is an order; retries at once."""


class Life:
    """One life of the daemon, and what the tests reach into."""

    http: HttpServer | None = None
    drain_timeout = 0.0

    def __init__(self, rig: "Rig") -> None:
        settings = rig.settings
        self.files = FailingFiles(rig.directory / "spool")
        path = rig.directory / "cold.sqlite"
        self.sqlite = SqliteCold(path, settings.cold.timeout, rig.now_ms, BALLAST_BYTES)
        self.cold = FragileCold(self.sqlite)
        stores = local_stores(settings, Journal(self.files, settings.spool), as_port(self.cold))
        stores.open_handler = rig.open_handler
        memory = QueueMemory(rig.warm_bytes_max, settings.spool.inmemory_bytes)
        self.daemon = daemon = build(settings, stores, memory, rig.now_ms)
        daemon.observers.history.disk = rig
        # `opened` counts the handlers that deliver, not those that are only tried.
        daemon.catalogue._probe = lambda _queue, _settings: None
        self.catalogue = daemon.catalogue
        self.spooler = daemon.spooler
        self.warm = daemon.tiers.warm
        memory_warm = daemon.tiers.states.stored_warm
        assert isinstance(memory_warm, MemoryWarm)
        self.memory: MemoryWarm = memory_warm
        self.failover = daemon.tiers.failover
        self.failover.entries_max, self.failover.bytes_max = rig.failover
        self.hand_over = daemon.tiers.hand_over
        self.promoter = daemon.tiers.promoter
        self.streams = daemon.tiers.streams
        self.history = daemon.observers.history
        self._started: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        self._stop = trio.Event()
        self._scope = trio.CancelScope()
        self.is_over = trio.Event()

    def line(self, queue: str = "q") -> Promotion:
        """What the promoter has acquired for warm; AssertionError: it does not know the queue."""
        line = self.daemon.tiers.states.line(queue)
        assert line is not None, f"{queue} has no line"
        return line

    # What a daemon needs of the world.

    @contextmanager
    def listen(self) -> Iterator[list[trio.SocketListener]]:
        """A socket that no client knows."""
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("")
            listening.listen()
            yield [trio.SocketListener(trio.socket.from_stdlib_socket(listening))]

    async def stop_wanted(self) -> None:
        self._started.started()
        await self._stop.wait()

    async def stop_at_once(self) -> None:
        await trio.sleep_forever()

    # Lives begin and end.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._started = task_status
        try:
            with self._scope:
                await self.sqlite.open()
                await self.sqlite.release_all()
                await live(self.daemon, self)
        finally:
            await self.sqlite.close()
            self.files.let_go()
            self.is_over.set()

    async def stop(self, drain_s: float) -> None:
        self.drain_timeout = drain_s
        self._stop.set()
        await self.is_over.wait()

    async def crash(self) -> None:
        """Nothing that happens from now on reaches the disk."""
        for call in get_args(Call):
            if call not in READS:
                self.files.break_down(call, errno.EIO)
        self.cold.break_down()
        self._scope.cancel()
        await self.is_over.wait()


class Rig:
    """The daemon's lives on one directory, and the destinations, which outlive them."""

    def __init__(
        self,
        directory: Path,
        queues: dict[str, dict[str, Any]],
        *,
        batch_items: int = 10,
        timeout_s: float = 30.0,
        failover: tuple[int, int] = (1000, 1 << 28),
        warm_bytes_max: int | None = None,
        inbox: int = 2048,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.settings = Settings.model_validate(
            {
                "state_dir": directory,
                "socket": {"max_run_bytes": "32Ki"},
                "spool": spool_settings().model_dump(mode="json"),
                "defaults": QUICK,
                "queues": queues,
                "cold": {"acquire_timeout": "1d"},
            }
            | settings
        )
        self.failover = failover
        self.warm_bytes_max = warm_bytes_max
        self.inbox = inbox
        self.free_bytes = 1 << 40
        """Of the disk, for history."""
        self.batch_items = batch_items
        self.timeout_s = timeout_s
        self.names: dict[str, str] = {}
        """The destinations of queues that share one."""
        self.destinations: dict[str, Destination] = {}
        self.opened: list[str] = []
        self.accepted: dict[str, str] = {}
        """Every item that was ever accepted, in order, and its queue."""
        self._ahead_ms = 0
        self._nursery: trio.Nursery | None = None
        self.life: Life

    def now_ms(self) -> int:
        return wall_ms() + self._ahead_ms

    def advance(self, seconds: float) -> None:
        """The wall clock is set forward; whoever waits for a moment looks again."""
        self._ahead_ms += round(seconds * 1000)
        for queue in {*self.accepted.values()}:
            self.life.promoter.wake(queue)

    def to(self, queue: str = "q") -> Destination:
        """Where the queue's items go."""
        return self.destinations.setdefault(self.names.get(queue, queue), Destination())

    def open_handler(self, queue: str, settings: QueueSettings) -> Handler | None:
        if settings.handler.type == "pull":
            return None
        self.opened.append(queue)
        name = self.names.get(queue, queue)
        return ScriptedHandler(self.to(queue), name, self.batch_items, self.timeout_s)

    # Lives.

    async def start(self) -> None:
        assert self._nursery is not None
        self.life = Life(self)
        await self._nursery.start(self.life.run)

    async def restart(self, drain_s: float = DRAIN_S) -> None:
        await self.life.stop(drain_s)
        await self.start()

    async def crash(self) -> None:
        await self.life.crash()
        await self.start()

    # What is asked of it.

    async def push(
        self, items: int = 1, queue: str = "q", size: int = 20, due_s: float = 0.0, **fields: Any
    ) -> list[str]:
        """One run; the ids of its items."""
        if due_s:
            fields["due_ms"] = self.now_ms() + round(due_s * 1000)
        payloads = [bytes([index % 256]) * size for index in range(items)]
        data = encode_run(payloads, queue=queue, compressed=False, **fields)
        head = read_head(data)
        inbox = Inbox()
        await self.life.spooler.client.send(Append(head, data, inbox, 1))
        await inbox.wait_for(1)
        answer = inbox.answers[1]
        if isinstance(answer, Refused):
            raise answer
        assert answer is Outcome.STORED
        ids = [format_item_id(head.run_id, index) for index in range(items)]
        self.accepted.update(dict.fromkeys(ids, queue))
        return ids

    async def stats(self) -> dict[str, Any]:
        """The report; whatever it says, it must add up."""
        report = await self.life.daemon.metrics.report()
        for name, entry in [("daemon", report["daemon"]), *report["queues"].items()]:
            check_entry(name, entry)
        for queue, fill in (await self.life.warm.fills()).items():
            settings = self.life.catalogue.settings_of(queue)
            assert fill.items <= settings.warm_max_items, (queue, fill)
            is_one = fill.items == 1
            assert fill.bytes <= settings.warm_max_bytes or is_one, (queue, fill)
        return report

    async def books(self, queue: str | None = "q") -> dict[str, int]:
        """A queue's books, or the daemon's, without what is 0."""
        report = await self.stats()
        entry = report["daemon"] if queue is None else report["queues"].get(queue, {})
        return {name: count for name, count in entry.items() if count}

    async def until_books(self, queue: str | None = "q", /, **wanted: int) -> dict[str, int]:
        """Waits until the books say so, and returns them."""

        async def check() -> dict[str, int]:
            with at_once():
                books = await self.books(queue)
            assert {name: books.get(name, 0) for name in wanted} == wanted, books
            return books

        return await eventually(check)

    async def until_in_cold(self, items: int, queue: str = "q") -> None:
        """Waits until cold has so many, and the journal has let go of them: only then can they be
        claimed."""

        async def check() -> None:
            with at_once():
                books = await self.books(queue)
            assert books.get("cold", 0) == items, books
            assert await self.life.sqlite.unconfirmed() == []

        await eventually(check)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits until it holds of the report, and returns that."""

        async def check() -> dict[str, Any]:
            with at_once():
                report = await self.stats()
            assert condition(report), report
            return report

        return await eventually(check)

    async def fill(self, queue: str = "q") -> Fill:
        return await self.life.warm.fill(queue)

    async def dead(self, queue: str | None = None) -> list[DeadLetter]:
        page = await self.life.sqlite.dead_letters.find(
            DeadFilter(queue), limit=1000, payloads=True
        )
        assert page.cursor is None
        return page.letters

    async def pause(self, queue: str, flow: str | None = None) -> None:
        """Also a queue that does not exist yet."""
        await self.life.catalogue.pause(queue, flow)

    async def control(self, op: str, **fields: Any) -> dict[str, Any]:
        return await self.life.daemon.control.perform(op, fields)


def check_entry(name: str, entry: dict[str, int]) -> None:
    """accepted = delivered + dead + dropped + deleted + lost + held, and held is its parts."""
    finished = sum(entry[fate] for fate in ("delivered", "dead", "dropped", "deleted", "lost"))
    assert entry["accepted"] == finished + entry["held"], (name, entry)
    parts = ("spooled", "scheduled", "warm", "cold", "running")
    assert all(entry[part] >= 0 for part in parts), (name, entry)
    assert sum(entry[part] for part in parts) == entry["held"], (name, entry)


async def do_nothing(
    _: Cron, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    task_status.started()


@asynccontextmanager
async def running(
    directory: Path, queues: dict[str, dict[str, Any]] | None = None, **options: Any
) -> AsyncIterator[Rig]:
    """A rig that is started, and ended without waiting for what is still to be delivered."""
    rig = Rig(directory, queues or {}, **options)
    with pytest.MonkeyPatch.context() as patch:
        # How long a waiter trusts the clock that `advance` sets, and how soon leases are missed.
        patch.setattr(warm_queue, "SLEEP_MAX_S", 0.01)
        patch.setattr(dispatch_module, "EXPIRE_S", 0.01)
        patch.setattr(dispatch_module, "CLEAR_S", 0.01)
        patch.setattr(spooler_module, "INBOX", rig.inbox)
        # Tests of triggers run their own.
        patch.setattr(Cron, "run", do_nothing)
        async with trio.open_nursery() as nursery:
            rig._nursery = nursery
            await rig.start()
            try:
                yield rig
            finally:
                await rig.life.crash()
