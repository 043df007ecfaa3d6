"""The daemon's parts, composed: the channels, the actors, and who knows whom.

    client ──► Ingest ──Append──► Spooler ──Lease──► Router ──► warm ──► WorkerGroup ──► handler
                 ◄───answers───┘     ▲                 │ HandOver ▲ ▲         │
                                     │                 ▼          │ └─ Pull   │ Settlement
                                     └──── Settle ─── cold ── Promoter ◄──────┘

Nothing runs yet: daemon/app.py starts and stops what is made here.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from actors.breaker import Breakers
from actors.catalogue import Catalogue
from actors.clock import wall_ms
from actors.control import Controls
from actors.dispatch import Dispatch
from actors.event_log import EventLog
from actors.failover import Failover
from actors.handling import Handler, HandlerUnusable
from actors.handover import HandOver
from actors.history import History
from actors.ingest import Ingest
from actors.intake import QUEUES_MAX
from actors.messages import Inquire, Pinned, QueueSeen, SpoolerMessage
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
from actors.tiers import Unconfirmed, limits_of
from actors.warm import MemoryWarm
from actors.workers import Shared
from daemon.cold.sqlite import SqliteCold
from daemon.definitions import load_definitions, saver
from daemon.errors import CannotStart
from daemon.events import open_sink
from daemon.handlers import open_handler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.listen import ListeningSocket
from daemon.memory import machine_limit_bytes, size_queues

SPOOLER_INBOX: Final = 2048


@dataclass(frozen=True, slots=True)
class Parts:
    """What app.py starts and stops."""

    unconfirmed: list[Unconfirmed]
    """What an earlier life had stored in cold without an answer."""
    to_spooler: trio.MemorySendChannel[SpoolerMessage]
    to_dispatch: trio.MemorySendChannel[QueueSeen | Pinned]
    catalogue: Catalogue
    spooler: Spooler
    promoter: Promoter
    streams: Streams
    events: EventLog
    breakers: Breakers
    history: History
    settlement: Settlement
    send_limit: SendLimit
    dispatch: Dispatch
    reporter: Reporter
    receipts: Receipts
    ingest: Ingest


async def compose(
    settings: Settings,
    make_files: Callable[[Path], Files],
    listening: ListeningSocket,
    cold: SqliteCold,
) -> Parts:
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
    return Parts(
        unconfirmed,
        to_spooler,
        to_dispatch,
        catalogue,
        spooler,
        promoter,
        streams,
        events,
        breakers,
        history,
        settlement,
        send_limit,
        dispatch,
        reporter,
        receipts,
        ingest,
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
