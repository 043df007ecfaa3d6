"""The daemon, composed: the channels, the actors, and how they start and stop. Read this first.

    client ──► Ingest ──Append──► Spooler ──Lease──► Router ──► warm ──► WorkerGroup ──► handler
                 ◄───answers───┘     ▲                 │ HandOver ▲ ▲         │
                                     │                 ▼          │ └─ Pull   │ Settlement
                                     └──── Settle ─── cold ── Promoter ◄──────┘

Starting: the lock on the state directory and the socket, in whose backlog clients wait while the
cold store opens and the journal recovers. Stopping (SIGTERM, SIGINT): intake ends, deliveries
under way are finished within `drain_timeout` and recorded, the journal is sealed. A second signal
does not wait. SIGHUP reloads queues, handlers and limits.
"""

import gc
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from actors.breaker import Breakers
from actors.catalogue import Catalogue
from actors.clock import wall_ms
from actors.control import Controls
from actors.dispatch import Dispatch
from actors.event_log import EventLog, watch_stores
from actors.events import DaemonChanged
from actors.failover import Failover
from actors.handling import Handler, HandlerUnusable
from actors.handover import HandOver
from actors.history import History
from actors.ingest import Ingest
from actors.intake import QUEUES_MAX
from actors.messages import Drain, Finish, Inquire, Pinned, QueueSeen, SpoolerMessage
from actors.origin import Origin, unpack_origin
from actors.promoter import Promoter
from actors.pull import Pull
from actors.pull_settling import PullSettling
from actors.queue_settings import QueueSettings
from actors.rate import SendLimit
from actors.receipts import Receipts
from actors.report import INQUIRIES_MAX, Reporter
from actors.router import Router, Routing
from actors.settings import Settings
from actors.settlement import Settlement
from actors.spooler import Spooler
from actors.streams import Streams
from actors.tiers import ColdQueue, Unconfirmed, limits_of
from actors.warm import MemoryWarm
from actors.workers import Shared
from daemon.cold.missing import tell_what_is_missing
from daemon.cold.sqlite import SqliteCold
from daemon.definitions import load_definitions, saver
from daemon.errors import CannotStart
from daemon.events import open_sink
from daemon.handlers import open_handler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.listen import ListeningSocket, open_socket
from daemon.lock import StateLock
from daemon.malloc import return_freed_memory
from daemon.memory import machine_limit_bytes, size_queues
from daemon.reload import Load, Reload, check_handlers
from daemon.signals import SIGNALS, stop_at_once, stop_wanted
from daemon.systemd import notify
from daemon.watchdog import Watchdog, answers

log = structlog.get_logger()

SPOOLER_INBOX: Final = 2048
FILES_MAX: Final = 65536
LAST_RECORDS_S: Final = 5.0
"""After the drain's deadline, for what was concluded by then to be recorded."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How soon the commit thread gets the interpreter back after a sync; Python's 5 ms would be felt
in every push under load."""


def main(settings: Settings, load: Load | None = None) -> int:
    """Runs the daemon until it is told to stop; the exit code. `load` reads the configuration
    again."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_file_limit()
    return_freed_memory()
    # What is imported stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    trio.run(serve, settings, Files, load)
    return 0


async def serve(
    settings: Settings,
    make_files: Callable[[Path], Files] = Files,
    load: Load | None = None,
    make_cold: Callable[[Path, float], SqliteCold] = SqliteCold,
) -> None:
    """The daemon's life. `make_files` and `make_cold` let a test stand between the stores and the
    disk."""
    with (
        trio.open_signal_receiver(*SIGNALS) as signals,
        StateLock(settings.state_dir),
        open_socket(settings.socket) as listening,
    ):
        await check_handlers(settings)
        cold = make_cold(settings.state_dir / "cold.sqlite", settings.cold.timeout)
        await cold.open()
        try:
            # What was in hand when an earlier life ended comes first, not when its lease runs out.
            await cold.release_all()
            await _serve(settings, make_files, load, signals, listening, cold)
        finally:
            await cold.close()
    log.info("daemon.stopped")


async def _serve(
    settings: Settings,
    make_files: Callable[[Path], Files],
    load: Load | None,
    signals: AsyncIterator[int],
    listening: ListeningSocket,
    cold: SqliteCold,
) -> None:
    to_spooler, spooler_inbox = trio.open_memory_channel[SpoolerMessage](SPOOLER_INBOX)
    to_dispatch, dispatch_inbox = trio.open_memory_channel[QueueSeen | Pinned](QUEUES_MAX)
    to_reporter, reporter_inbox = trio.open_memory_channel[Inquire](INQUIRIES_MAX)

    memory = size_queues(settings, machine_limit_bytes())
    spool = settings.spool.model_copy(update={"inmemory_bytes": memory.inmemory_bytes})
    definitions = load_definitions(settings.state_dir)
    catalogue = Catalogue(settings, definitions, saver(settings.state_dir), wall_ms, _probe)
    await catalogue.stamp()

    # The owners: the journal and the cold store.
    unconfirmed = await cold.unconfirmed()
    spooler = Spooler(
        spool,
        catalogue.queue,
        Journal(make_files(settings.state_dir / "spool"), spool),
        inbox=spooler_inbox,
        own_inbox=to_spooler.clone(),
        seen=to_dispatch.clone(),
        disowned=disowned(unconfirmed),
    )
    # What moves between them and warm.
    warm = MemoryWarm(memory.bytes_max)
    events = EventLog(settings.events, open_sink(settings.events, settings.state_dir), wall_ms)
    routing, failover, breakers = Routing(), Failover(), Breakers(events.note)
    promoter = Promoter(
        routing,
        warm,
        cold,
        catalogue.settings_of,
        catalogue.paused_flows,
        settings.cold.acquire_timeout,
        wall_ms,
        memory.bytes_max,
    )

    def has_come_to_cold(queue: str) -> None:
        promoter.wake(queue)
        streams.wake(queue)

    hand_over = HandOver(cold, to_spooler.clone(), failover, has_come_to_cold)
    router = Router(
        routing,
        to_spooler.clone(),
        warm,
        cold,
        hand_over,
        catalogue.settings_of,
        catalogue.paused_flows,
        lambda: spooler.disk_is_low,
        lambda: spooler.wants_the_disk,
        wall_ms,
        memory.in_hand_bytes,
    )
    streams = Streams(routing, to_spooler.clone(), warm, cold, router, catalogue, promoter.wake)
    await streams.load()
    # What delivers, and says what became of it.
    history = History(
        cold, catalogue.settings_of, lambda: spooler.free_bytes, spool.min_free_bytes, wall_ms
    )
    cold.keep_history(history.keep)
    settlement = Settlement(
        warm,
        cold,
        to_spooler.clone(),
        hand_over,
        failover,
        promoter.wake,
        routing.unrecorded,
        lambda queue: limits_of(catalogue.settings_of(queue)),
        wall_ms,
        events,
        history,
    )
    send_limit = SendLimit(settings.global_send_limit)
    cores = len(os.sched_getaffinity(0))
    dispatch = Dispatch(
        dispatch_inbox,
        catalogue,
        router,
        promoter,
        Shared(warm, settlement, breakers, send_limit, wall_ms, cores, events),
        _open_handler,
    )

    # The socket's side.
    def more() -> dict[str, Any]:
        return describe(routing, failover, breakers, dispatch, settlement) | {
            "events": events.figures(),
            "history_dropped_total": history.dropped_total,
        }

    reporter = Reporter(reporter_inbox, to_spooler.clone(), warm, cold, more)
    receipts = Receipts(to_spooler.clone(), cold, spool.receipt_ttl, wall_ms)
    ingest = Ingest(
        settings.socket,
        [listening.listener],
        to_spooler.clone(),
        to_reporter,
        known_queue=lambda queue: catalogue.queue(queue) is not None,
        pull=Pull(
            warm,
            PullSettling(settlement, catalogue.settings_of, wall_ms),
            catalogue.queue,
            lambda queue: None if catalogue.is_paused(queue) else catalogue.paused_flows(queue),
        ),
        control=Controls(
            catalogue,
            cold.dead_letters,
            breakers,
            reporter.held_items,
            promoter.wake,
            wall_ms,
            {**receipts.operations, **streams.operations},
        ),
        rows=streams,
    )
    reload = Reload(settings, load, catalogue, send_limit)

    # The last to start is the first to stop.
    async with trio.open_nursery() as storing:
        await storing.start(events.run)
        await storing.start(spooler.run)
        await finish_hand_overs(cold, spooler, unconfirmed)
        await tell_what_is_missing(cold, to_spooler)
        storing.start_soon(Watchdog(answers(reporter.report)).run)
        storing.start_soon(reporter.run)
        storing.start_soon(breakers.run)
        storing.start_soon(promoter.run)
        storing.start_soon(streams.run)
        storing.start_soon(receipts.run)
        storing.start_soon(history.run)
        storing.start_soon(
            watch_stores,
            events,
            {"cold": lambda: promoter.cold_is_away, "disk": lambda: spooler.disk_is_low},
            wall_ms,
        )
        async with trio.open_nursery() as settling:
            await settling.start(settlement.run)
            async with trio.open_nursery() as delivering:
                await delivering.start(dispatch.run)
                for queue, totals in (await cold.totals()).items():
                    if totals.held or totals.dead:
                        await to_dispatch.send(QueueSeen(queue))
                async with trio.open_nursery() as receiving:
                    await receiving.start(ingest.run)
                    log.info(
                        "daemon.ready",
                        socket=str(listening.path),
                        state=str(settings.state_dir),
                    )
                    events.note(DaemonChanged(wall_ms(), "started"))
                    notify("READY=1", f"STATUS=serving on {listening.path}")
                    await stop_wanted(signals, reload)
                    notify("STOPPING=1", "STATUS=draining")
                    events.note(DaemonChanged(wall_ms(), "draining"))
                    storing.start_soon(stop_at_once, signals, storing.cancel_scope)
                    deadline = trio.current_time() + settings.drain_timeout
                    receiving.cancel_scope.deadline = deadline
                    delivering.cancel_scope.deadline = deadline
                    settling.cancel_scope.deadline = deadline + LAST_RECORDS_S
                    dispatch.drain()
                    await to_spooler.send(Drain())
                    await ingest.drain()
            settlement.close()
        await history.close()
        await to_spooler.send(Finish())
        await spooler.finished.wait()
        events.note(DaemonChanged(wall_ms(), "stopped"))
        await events.close()
        storing.cancel_scope.cancel()


async def finish_hand_overs(
    cold: ColdQueue, spooler: Spooler, unconfirmed: list[Unconfirmed]
) -> None:
    """What an earlier life stored in cold is the cold store's, now that the journal has let go."""
    if unconfirmed and spooler.has_disowned:
        rows: dict[bool, list[bytes]] = {True: [], False: []}
        for entry in unconfirmed:
            rows[spooler.has_let_go(unpack_origin(entry.origin))].append(entry.row)
        await cold.confirm(rows[True])
        await cold.forget(rows[False])
        log.info(
            "daemon.hand_overs_finished", rows=len(rows[True]), settled_before=len(rows[False])
        )


def disowned(unconfirmed: list[Unconfirmed]) -> dict[int, list[Origin]]:
    """By position in the journal."""
    found: dict[int, list[Origin]] = {}
    for entry in unconfirmed:
        origin = unpack_origin(entry.origin)
        found.setdefault(origin.position, []).append(origin)
    return found


def describe(
    routing: Routing,
    failover: Failover,
    breakers: Breakers,
    dispatch: Dispatch,
    settlement: Settlement,
) -> dict[str, Any]:
    """What the actors know beside the books."""
    return {
        "tiers": {queue: tier.name.lower() for queue, tier in sorted(routing.tiers.items())},
        "workers": {group.queue: group.figures() for group in dispatch.groups()},
        "breakers": {
            destination: {
                "state": figures.phase,
                "failures": figures.failures,
                "opened_total": figures.opened_total,
            }
            for destination, figures in sorted(breakers.figures().items())
        },
        "failover": {
            "entries": len(failover),
            "bytes": failover.bytes,
            "let_go_total": failover.let_go_total,
        },
        "stale_outcomes_total": settlement.stale_total,
    }


def _open_handler(queue: str, settings: QueueSettings) -> Handler | None:
    try:
        return open_handler(queue, settings)
    except CannotStart as problem:
        raise HandlerUnusable(str(problem)) from problem


def _probe(queue: str, settings: QueueSettings) -> None:
    _open_handler(queue, settings)


def _raise_file_limit() -> None:
    """A connection is a file; a shell's usual 1,024 would leave none for the journal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
