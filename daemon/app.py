"""Starts, runs and stops the daemon. Read this first, then composition.py.

Start: it locks the state directory, opens the stores, recovers the journal, and opens the socket
last, so that every client that connects is answered. (Clients of a socket that systemd holds wait
in its backlog meanwhile.) Stop (SIGTERM, SIGINT): it accepts no more pushes, finishes and records
deliveries in flight within `drain_timeout`, and seals the journal. A second signal does not wait
for deliveries. SIGHUP reloads queues, handlers and limits.
"""

import gc
import resource
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from actors.config.settings import Settings
from actors.model.clock import wall_ms
from actors.model.runs import unpack_origin
from actors.observers.event_log import watch_stores
from actors.observers.events import DaemonChanged
from actors.ports.tiers import ColdQueue, Unconfirmed
from actors.spooler.messages import Drain, Finish, QueueSeen
from actors.spooler.spooler import Spooler
from daemon.composition import compose
from daemon.faces import compose_faces
from daemon.http.desk import Desk
from daemon.http.listening import address_of, open_http
from daemon.journal.files import Files
from daemon.process.listen import ListeningSocket, prepare_socket
from daemon.process.memory import return_freed_memory
from daemon.process.reload import Load, Reload, check_handlers
from daemon.process.signals import SIGNALS, stop_at_once, stop_wanted, unless_stopped
from daemon.process.systemd import Watchdog, answers, notify
from daemon.state.lock import StateLock
from daemon.stores.open import MakeCold, Stores, open_stores
from daemon.stores.sqlite.quarantine import account_for_missing
from daemon.stores.sqlite.store import SqliteCold

if TYPE_CHECKING:
    from daemon.http.server import HttpServer

log = structlog.get_logger()

SPOOLER_INBOX: Final = 2048
FILES_MAX: Final = 65536
COLLECTED_AFTER: Final = (2000, 10, 200)
"""What lives long is looked through 20 times as seldom as by default: with 500 queues each look
stopped everything for 70 to 110 ms, every 7 s. What is in a circle dies young here."""
LAST_RECORDS_S: Final = 5.0
"""Time after the drain's deadline to record the outcomes known by then."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How soon the commit thread gets the interpreter back after a sync; Python's 5 ms would be felt
in every push under load."""


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
    make_files: Callable[[Path], Files] = Files,
    load: Load | None = None,
    make_cold: MakeCold = SqliteCold,
    *,
    wait_for_stores: bool = False,
) -> None:
    """The daemon's life. `make_files` and `make_cold` let a test stand between the stores and the
    disk."""
    with (
        trio.open_signal_receiver(*SIGNALS) as signals,
        StateLock(settings.state_dir),
        open_http(settings) as http_socket,
    ):
        open_socket = prepare_socket(settings.socket)
        written_ms = newest_write_ms(settings.state_dir)
        await check_handlers(settings)
        async with AsyncExitStack() as stack:
            opening = open_stores(settings, make_cold, wait=wait_for_stores)
            stores = await unless_stopped(signals, partial(stack.enter_async_context, opening))
            if stores is not None:
                # Release the runs that an earlier process had taken: their leases need not end.
                await stores.cold.release_all()
                await _serve(
                    settings,
                    make_files,
                    load,
                    signals,
                    open_socket,
                    http_socket,
                    stores,
                    written_ms,
                )
    log.info("daemon.stopped")


async def _serve(
    settings: Settings,
    make_files: Callable[[Path], Files],
    load: Load | None,
    signals: AsyncIterator[int],
    open_socket: Callable[[], ListeningSocket],
    http_socket: socket.socket | None,
    stores: Stores,
    written_ms: int,
) -> None:
    """`written_ms`: when an earlier life last wrote a file."""
    cold = stores.cold
    core = await compose(settings, make_files, stores)
    await core.clock_watch.start(written_ms)
    faces = compose_faces(settings, core, stores)
    reload = Reload(
        settings, load, core.catalogue, core.send_limit, faces.cron, faces.triggers, core.notifier
    )
    http = None if http_socket is None else make_http(faces.desk, http_socket, reload)
    _keep_imported()

    # The last to start is the first to stop.
    async with trio.open_nursery() as storing:
        await storing.start(core.events.run)
        await storing.start(core.spooler.run)
        await finish_hand_overs(cold, core.spooler, core.unconfirmed)
        await account_for_missing(cold, core.to_spooler)
        storing.start_soon(Watchdog(answers(faces.reporter.report)).run)
        storing.start_soon(faces.reporter.run)
        storing.start_soon(faces.metrics.run)
        storing.start_soon(core.clock_watch.run)
        storing.start_soon(core.breakers.run)
        if core.fleet is not None:
            storing.start_soon(core.fleet.breakers.run)
        storing.start_soon(core.promoter.run)
        if stores.shared_cold is not None:
            storing.start_soon(stores.shared_cold.listen)
        storing.start_soon(core.streams.run)
        if faces.follower is not None:
            await faces.follower.catch_up()
            storing.start_soon(faces.follower.run)
        if faces.recalling is not None:
            storing.start_soon(faces.recalling.run)
        storing.start_soon(faces.receipts.run)
        storing.start_soon(faces.keyed.run)
        await storing.start(faces.cron.run)
        await storing.start(faces.triggers.run)
        storing.start_soon(core.history.run)
        storing.start_soon(core.notifier.run)
        storing.start_soon(faces.jobs.run)
        storing.start_soon(
            watch_stores,
            core.events,
            core.is_away(),
            wall_ms,
        )
        core.events.note(DaemonChanged(wall_ms(), "started"))
        async with trio.open_nursery() as settling:
            await settling.start(core.settlement.run)
            if core.fleet is not None:
                await core.fleet.owner.recover()
                await storing.start(core.fleet.owner.run)
            async with trio.open_nursery() as delivering:
                await delivering.start(core.dispatch.run)
                for queue, totals in (await cold.totals()).items():
                    if totals.held or totals.dead:
                        await core.to_dispatch.send(QueueSeen(queue))
                # It shows how the daemon drains, and ends when nothing is delivered any more.
                if http is not None:
                    await settling.start(http.run)
                with open_socket() as listening:
                    async with trio.open_nursery() as receiving:
                        await receiving.start(faces.ingest.run, [listening.listener])
                        receiving.start_soon(faces.desk.pull.run, faces.desk.stopping)
                        log.info(
                            "daemon.ready",
                            socket=str(listening.path),
                            state=str(settings.state_dir),
                            http=None if http_socket is None else address_of(http_socket),
                        )
                        notify("READY=1", f"STATUS=serving on {listening.path}")
                        await stop_wanted(signals, reload)
                        notify("STOPPING=1", "STATUS=draining")
                        core.events.note(DaemonChanged(wall_ms(), "draining"))
                        storing.start_soon(stop_at_once, signals, storing.cancel_scope)
                        deadline = trio.current_time() + settings.drain_timeout
                        receiving.cancel_scope.deadline = deadline
                        delivering.cancel_scope.deadline = deadline
                        settling.cancel_scope.deadline = deadline + LAST_RECORDS_S
                        faces.desk.stopping.set()
                        core.dispatch.drain()
                        faces.triggers.drain()
                        await core.to_spooler.send(Drain())
                        await faces.ingest.drain()
            if http is not None:
                await http.close()
            core.settlement.close()
        await core.notifier.close()
        await core.history.close()
        if faces.follower is not None:
            await faces.follower.close()
        await core.to_spooler.send(Finish())
        await core.spooler.finished.wait()
        core.events.note(DaemonChanged(wall_ms(), "stopped"))
        await core.events.close()
        storing.cancel_scope.cancel()


def newest_write_ms(state_dir: Path) -> int:
    """When a file of the state directory or its journal was last written; 0 if there is none."""
    newest_ns = 0
    for directory in (state_dir, state_dir / "spool"):
        for file in directory.glob("*"):
            with suppress(FileNotFoundError):
                newest_ns = max(newest_ns, file.lstat().st_mtime_ns)
    return newest_ns // 1_000_000


def make_http(desk: Desk, sock: socket.socket, reload: Reload) -> "HttpServer":
    """Imports the HTTP server here, so that a daemon without HTTP does not load it."""
    from daemon.http.access import Access
    from daemon.http.app import make_app
    from daemon.http.server import HttpServer

    access = Access(desk.settings.http)
    reload.also(access.reload)
    return HttpServer(desk.settings.http, sock, make_app(desk, access))


async def finish_hand_overs(
    cold: ColdQueue, spooler: Spooler, unconfirmed: list[Unconfirmed]
) -> None:
    """Completes hand-overs that an earlier process began: runs it stored in cold belong to cold."""
    if unconfirmed and spooler.has_disowned:
        rows: dict[bool, list[bytes]] = {True: [], False: []}
        for entry in unconfirmed:
            rows[spooler.has_let_go(unpack_origin(entry.origin))].append(entry.row)
        await cold.confirm(rows[True])
        await cold.forget(rows[False])
        log.info(
            "daemon.hand_overs_finished", rows=len(rows[True]), settled_before=len(rows[False])
        )


def _keep_imported() -> None:
    """What is imported stays: the collector need not look at it again. With the HTTP side these
    are 96,000 objects, and each look at them would stop everything for 50 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def _raise_file_limit() -> None:
    """A connection is a file; a shell's usual 1,024 would leave none for the journal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
