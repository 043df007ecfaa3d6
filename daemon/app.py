"""The whole daemon on one page: `build` makes its parts, `live` starts and stops them.

    client ──► Ingest ──► Spooler ──► Tiers ──► warm ──► Workers ──► destination
                 ◄─answers──┘  ▲     router,     ▲          │
                               │     promoter ◄─ cold       │
                               └──────── settlement ◄───────┘
    Control, Metrics, Cron, Keys, Writes and Fleet beside them; Observers hear of every outcome.

Start: `serve` locks the state directory, opens the stores, recovers the journal, and opens the
socket last, so that every client that connects is answered. (Clients of a socket that systemd holds
wait in its backlog meanwhile.) Stop (SIGTERM, SIGINT): it accepts no more pushes, finishes and
records deliveries in flight within `drain_timeout`, and seals the journal. A second signal does not
wait for deliveries. SIGHUP reloads queues, handlers and limits.
"""

import gc
import resource
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.control.control import Control
from actors.control.items import Items
from actors.cron.cron import Cron
from actors.fleet.fleet import Fleet
from actors.ingest.ingest import Ingest
from actors.keys.keys import Keys
from actors.metrics.metrics import Metrics
from actors.model.clock import Clock, wall_ms
from actors.observers.event_log import watch_stores
from actors.observers.observers import Observers
from actors.ports.tiers import WarmTier
from actors.spooler.arrivals import Arrivals
from actors.spooler.messages import Drain, Finish
from actors.spooler.spooler import Spooler
from actors.tiers.clock_watch import ClockWatch
from actors.tiers.queue_tiers import QueueMemory
from actors.tiers.shared_warm import SharedWarm
from actors.tiers.tiers import Tiers
from actors.tiers.warm import MemoryWarm
from actors.workers.workers import Workers
from actors.writes.writes import DECISION_STEPS, Writes
from daemon.config.secrets import read_secrets
from daemon.http.doors import Doors
from daemon.http.listening import address_of, open_http
from daemon.journal.files import Files
from daemon.notify.ways import check_webhooks, make_ways
from daemon.process.listen import ListeningSocket, prepare_socket
from daemon.process.malloc import return_freed_memory
from daemon.process.memory import machine_limit_bytes, size_queues
from daemon.process.reload import Load, Reload, check_handlers
from daemon.process.signals import SIGNALS, second_stop, stop_wanted, unless_stopped
from daemon.process.systemd import Watchdog, answers, notify
from daemon.state.lock import StateLock
from daemon.stores.open import MakeCold, MakeFiles, Stores, open_stores
from daemon.stores.sqlite.quarantine import account_for_missing
from daemon.stores.sqlite.store import SqliteCold

if TYPE_CHECKING:
    from daemon.http.server import HttpServer

log = structlog.get_logger()

FILES_MAX: Final = 65536
COLLECTED_AFTER: Final = (2000, 10, 200)
"""Long-lived objects are examined 20 times less often than by default: with 500 queues each
collection stopped everything for 70 to 110 ms, every 7 s. Objects in reference cycles die young
here."""
LAST_RECORDS_S: Final = 5.0
"""Time after the drain's deadline to record the outcomes known by then."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How soon the commit thread gets the interpreter back after a sync; Python's 5 ms would be felt
in every push under load."""


@dataclass(slots=True)
class Daemon:
    """The parts of a daemon. Every part is the door of its package."""

    settings: Settings
    stores: Stores
    catalogue: Catalogue
    spooler: Spooler
    observers: Observers
    tiers: Tiers
    workers: Workers
    keys: Keys
    writes: Writes
    fleet: Fleet
    cron: Cron
    metrics: Metrics
    control: Control
    ingest: Ingest
    clock_watch: ClockWatch
    stopping: trio.Event
    """Set when the daemon begins to drain."""

    def hear(self, said: str) -> None:
        """Another daemon has put something into cold, or has something to say."""
        self.tiers.wake(said)
        self.writes.hear(said)


def build(
    settings: Settings, stores: Stores, memory: QueueMemory, now_ms: Clock = wall_ms
) -> Daemon:
    """Constructs the daemon and does no I/O. Tests build the same daemon with other stores."""
    spool = settings.spool.model_copy(update={"inmemory_bytes": memory.inmemory_bytes})
    own_warm = MemoryWarm(memory.bytes_max, now_ms)
    warm: WarmTier = own_warm
    if stores.remote is not None and stores.fleet.rows is not None:
        warm = SharedWarm(stores.remote, own_warm, stores.fleet.rows, stores.cold, now_ms)

    catalogue = Catalogue(settings, stores.definitions, now_ms, stores.open_handler)
    spooler = Spooler(spool, stores.journal, catalogue, Arrivals(catalogue))
    ways = make_ways(catalogue, spooler.client)
    observers = Observers(
        settings, catalogue, stores.cold, spooler, stores.event_sink, ways, now_ms
    )
    tiers = Tiers(settings, spooler, warm, stores.cold, catalogue, memory, now_ms)
    workers = Workers(settings, tiers, catalogue, observers, stores.open_handler, stores.fleet.rate)
    keys = Keys(tiers, catalogue)
    decisions = tiers.watch(stores.cold.decisions, DECISION_STEPS)
    writes = Writes(spooler.client, decisions, spool.stage_ttl, now_ms, is_shared=stores.is_shared)
    fleet = Fleet(stores.fleet, tiers, workers)
    items = Items(tiers, workers, observers.history, settings.socket.max_run_bytes)
    cron = Cron(settings, stores.cron, tiers, catalogue, observers, items)
    metrics = Metrics(catalogue, tiers, workers, keys, cron, observers, is_shared=stores.is_shared)
    control = Control(tiers, workers, items, cron, writes, fleet, metrics)
    ingest = Ingest(
        settings.socket, catalogue, spooler.client, keys, workers.pull, tiers.streams, control
    )
    metrics.ingest = ingest
    daemon = Daemon(
        settings=settings,
        stores=stores,
        catalogue=catalogue,
        spooler=spooler,
        observers=observers,
        tiers=tiers,
        workers=workers,
        keys=keys,
        writes=writes,
        fleet=fleet,
        cron=cron,
        metrics=metrics,
        control=control,
        ingest=ingest,
        clock_watch=ClockWatch(own_warm, stores.cold),
        stopping=trio.Event(),
    )
    stores.on_wake = daemon.hear
    return daemon


class Outside(Protocol):
    """How a daemon meets the world: where clients connect, and when it must stop."""

    http: "HttpServer | None"

    def listen(self) -> AbstractContextManager[list[trio.SocketListener]]:
        """Opens the socket, once everything else runs."""

    async def stop_wanted(self) -> None:
        """Returns when the daemon must drain."""

    async def stop_at_once(self) -> None:
        """Returns when it must not wait for deliveries any longer."""

    @property
    def drain_timeout(self) -> float: ...


async def live(daemon: Daemon, outside: Outside) -> None:
    """Runs the daemon until it has stopped. The last part to start is the first to stop, and every
    stage drains before the one around it ends."""
    workers, http = daemon.workers, outside.http
    async with trio.open_nursery() as storing:
        await _start_storing(daemon, storing)
        daemon.observers.daemon_changed("started")
        async with trio.open_nursery() as settling:
            await settling.start(workers.settlement.run)
            async with trio.open_nursery() as delivering:
                await delivering.start(workers.dispatch.run)
                for queue, totals in (await daemon.tiers.cold.totals()).items():
                    if totals.held or totals.dead:
                        await daemon.spooler.arrivals.see(queue)
                # HTTP shows how the daemon drains, and ends when nothing is delivered any more.
                if http is not None:
                    await settling.start(http.run)
                with outside.listen() as listeners:
                    async with trio.open_nursery() as receiving:
                        await receiving.start(daemon.ingest.run, listeners)
                        receiving.start_soon(workers.pull.run, daemon.stopping)
                        await outside.stop_wanted()
                        storing.start_soon(_stop_at_once, outside, storing.cancel_scope)
                        deadline = trio.current_time() + outside.drain_timeout
                        receiving.cancel_scope.deadline = deadline
                        delivering.cancel_scope.deadline = deadline
                        settling.cancel_scope.deadline = deadline + LAST_RECORDS_S
                        await _drain(daemon)
            if http is not None:
                await http.close()
            workers.settlement.close()
        await daemon.observers.drain()
        await daemon.writes.close()
        await daemon.fleet.close()
        await daemon.spooler.client.send(Finish())
        await daemon.spooler.finished.wait()
        daemon.observers.daemon_changed("stopped")
        await daemon.observers.close()
        storing.cancel_scope.cancel()


async def _start_storing(daemon: Daemon, nursery: trio.Nursery) -> None:
    """Recovers, and starts everything that must run before items are leased."""
    tiers, spooler = daemon.tiers, daemon.spooler
    await daemon.catalogue.stamp()
    await tiers.recover()
    await nursery.start(daemon.observers.run)
    await nursery.start(spooler.run)
    await tiers.finish_hand_overs()
    await account_for_missing(daemon.stores.cold, spooler.client)
    nursery.start_soon(Watchdog(answers(daemon.metrics.books.report)).run)
    nursery.start_soon(daemon.metrics.run)
    nursery.start_soon(daemon.clock_watch.run)
    nursery.start_soon(daemon.workers.breakers.run)
    nursery.start_soon(tiers.run)
    nursery.start_soon(daemon.stores.listen)
    await daemon.writes.catch_up()
    nursery.start_soon(daemon.writes.run)
    nursery.start_soon(daemon.fleet.run)
    nursery.start_soon(daemon.keys.run)
    await nursery.start(daemon.cron.run)
    nursery.start_soon(daemon.control.run)
    nursery.start_soon(watch_stores, daemon.observers.events, tiers.is_away, tiers.now_ms)


async def _drain(daemon: Daemon) -> None:
    """Accepts and leases nothing more; returns when the last client has its answer."""
    daemon.observers.daemon_changed("draining")
    daemon.stopping.set()
    daemon.fleet.drain()
    daemon.workers.dispatch.drain()
    daemon.cron.drain()
    await daemon.spooler.client.send(Drain())
    await daemon.ingest.drain()


async def _stop_at_once(outside: Outside, scope: trio.CancelScope) -> None:
    await outside.stop_at_once()
    scope.cancel()


class Process:
    """The daemon as a process: its sockets, its signals, and what it tells systemd."""

    def __init__(
        self,
        daemon: Daemon,
        signals: AsyncIterator[int],
        open_socket: Callable[[], ListeningSocket],
        http_socket: socket.socket | None,
        load: Load | None,
    ) -> None:
        self._settings = settings = daemon.settings
        self._signals = signals
        self._open_socket = open_socket
        self._http_socket = http_socket
        self._reload = Reload(
            settings, load, daemon.catalogue, daemon.workers, daemon.cron, daemon.observers
        )
        self.http = None
        if http_socket is not None:
            self.http = _make_http(daemon, http_socket, self._reload)
        self.drain_timeout = settings.drain_timeout
        self._path = settings.socket.path

    @contextmanager
    def listen(self) -> Iterator[list[trio.SocketListener]]:
        with self._open_socket() as listening:
            self._path = listening.path
            yield [listening.listener]

    async def stop_wanted(self) -> None:
        log.info(
            "daemon.ready",
            socket=str(self._path),
            state=str(self._settings.state_dir),
            http=None if self._http_socket is None else address_of(self._http_socket),
        )
        notify("READY=1", f"STATUS=serving on {self._path}")
        await stop_wanted(self._signals, self._reload)
        notify("STOPPING=1", "STATUS=draining")

    async def stop_at_once(self) -> None:
        await second_stop(self._signals)


def main(settings: Settings, load: Load | None = None, *, wait_for_stores: bool = False) -> int:
    """Runs the daemon until it is told to stop; the exit code. `load` reads the configuration
    again."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_file_limit()
    return_freed_memory()
    _keep_imported()
    trio.run(partial(serve, settings, Files, load, wait_for_stores=wait_for_stores))
    return 0


async def serve(
    settings: Settings,
    make_files: MakeFiles = Files,
    load: Load | None = None,
    make_cold: MakeCold = SqliteCold,
    *,
    wait_for_stores: bool = False,
) -> None:
    """The daemon's life as a process. `make_files` and `make_cold` let a test stand between the
    stores and the disk."""
    with (
        trio.open_signal_receiver(*SIGNALS) as signals,
        StateLock(settings.state_dir),
        open_http(settings) as http_socket,
    ):
        open_socket = prepare_socket(settings.socket)
        written_ms = newest_write_ms(settings.state_dir)
        read_secrets(settings)
        await check_handlers(settings)
        check_webhooks(settings.notifications)
        async with AsyncExitStack() as stack:
            opening = open_stores(settings, make_files, make_cold, wait=wait_for_stores)
            stores = await unless_stopped(signals, partial(stack.enter_async_context, opening))
            if stores is not None:
                daemon = build(settings, stores, size_queues(settings, machine_limit_bytes()))
                process = Process(daemon, signals, open_socket, http_socket, load)
                _keep_imported()
                await daemon.clock_watch.start(written_ms)
                await live(daemon, process)
    log.info("daemon.stopped")


def newest_write_ms(state_dir: Path) -> int:
    """When a file of the state directory or its journal was last written; 0 if there is none."""
    newest_ns = 0
    for directory in (state_dir, state_dir / "spool"):
        for file in directory.glob("*"):
            with suppress(FileNotFoundError):
                newest_ns = max(newest_ns, file.lstat().st_mtime_ns)
    return newest_ns // 1_000_000


def _make_http(daemon: Daemon, sock: socket.socket, reload: Reload) -> "HttpServer":
    """Imports the HTTP server here, so that a daemon without HTTP does not load it."""
    from daemon.http.access import Access
    from daemon.http.app import make_app
    from daemon.http.server import HttpServer

    access = Access(daemon.settings.http)
    reload.also(access.reload)
    doors = Doors(
        settings=daemon.settings,
        catalogue=daemon.catalogue,
        control=daemon.control,
        metrics=daemon.metrics,
        tiers=daemon.tiers,
        workers=daemon.workers,
        keys=daemon.keys,
        events=daemon.observers.ring,
        stopping=daemon.stopping,
    )
    return HttpServer(daemon.settings.http, sock, make_app(doors, access))


def _keep_imported() -> None:
    """Exempts everything that is imported from garbage collection. With the HTTP server these are
    96,000 objects, and each collection would stop everything for 50 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def _raise_file_limit() -> None:
    """A connection is a file; a shell's usual 1,024 would leave none for the journal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
