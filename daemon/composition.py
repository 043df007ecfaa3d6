"""The daemon's parts, composed: the channels, the actors, and who knows whom.

    client ──► Ingest ──Append──► Spooler ──Lease──► Router ──► warm ──► WorkerGroup ──► handler
                 ◄───answers───┘     ▲                 │ HandOver ▲ ▲         │
                                     │                 ▼          │ └─ Pull   │ Settlement
                                     └──── Settle ─── cold ── Promoter ◄──────┘

Here is what stores and delivers; daemon/faces.py has what people and programs ask. Nothing runs
yet: daemon/app.py starts and stops it.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.breaker.breaker import Breakers
from actors.config.catalogue import Catalogue
from actors.config.queue import QueueSettings
from actors.config.settings import Settings, SpoolSettings
from actors.fleet.breakers import FleetBreakers
from actors.fleet.owner import Owner
from actors.fleet.shared_warm import SharedWarm
from actors.model.clock import wall_ms
from actors.model.keys import KeyRule
from actors.model.outcomes import HandlerUnusable
from actors.model.runs import Origin, unpack_origin
from actors.observers.event_log import EventLog, EventRing
from actors.observers.failure_log import FailureLog
from actors.observers.history import History
from actors.observers.notifier import Notifier
from actors.observers.observers import Observers
from actors.observers.tallies import Tallies
from actors.ports.handler import Handler
from actors.ports.presence import Presence
from actors.ports.tiers import Unconfirmed, WarmQueue, limits_of
from actors.spooler.intake import QUEUES_MAX
from actors.spooler.messages import Pinned, QueueSeen, SpoolerMessage
from actors.spooler.spooler import Spooler
from actors.tiers.clock_watch import ClockWatch
from actors.tiers.failover import Failover
from actors.tiers.handover import HandOver
from actors.tiers.promoter import Promoter
from actors.tiers.router import Router, Routing
from actors.tiers.streams import Streams
from actors.tiers.warm import MemoryWarm
from actors.workers.dispatch import Dispatch
from actors.workers.rate import SendLimit
from actors.workers.settlement import Settlement
from actors.workers.workers import Shared
from daemon.errors import CannotStart
from daemon.events import open_sink
from daemon.handlers import open_handler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.notify.ways import check_webhooks, make_ways
from daemon.process.memory import machine_limit_bytes, size_queues
from daemon.state.kept_file import load_definitions, saver
from daemon.stores.open import Stores

if TYPE_CHECKING:
    from daemon.stores.valkey.lost_owners import LostOwners
    from daemon.stores.valkey.shared_limits import SharedRate

SPOOLER_INBOX: Final = 2048


@dataclass(frozen=True, slots=True)
class Fleet:
    """What daemons that share a Valkey have beside."""

    owner: Owner
    """Of this daemon's runs that are there."""
    breakers: FleetBreakers
    rate: "SharedRate"
    lost_owners: "LostOwners"


@dataclass(frozen=True, slots=True)
class Core:
    """What stores and delivers, and how its parts reach each other."""

    to_spooler: trio.MemorySendChannel[SpoolerMessage]
    to_dispatch: trio.MemorySendChannel[QueueSeen | Pinned]
    spool: SpoolSettings
    """With the sizes that this machine allows."""
    unconfirmed: list[Unconfirmed]
    """What an earlier life had stored in cold without an answer."""
    catalogue: Catalogue
    spooler: Spooler
    warm: WarmQueue
    shared_warm: SharedWarm | None
    routing: Routing
    failover: Failover
    presence: Presence
    """Of the cold store."""
    hand_over: HandOver
    promoter: Promoter
    router: Router
    streams: Streams
    events: EventLog
    ring: EventRing
    breakers: Breakers
    history: History
    tallies: Tallies
    notifier: Notifier
    settlement: Settlement
    send_limit: SendLimit
    dispatch: Dispatch
    fleet: Fleet | None
    has_come_to_cold: Callable[..., None]
    see_queue: Callable[[str], None]
    clock_watch: ClockWatch

    def away_total(self) -> dict[str, int]:
        """How often a store went away."""
        warm = 0 if self.shared_warm is None else self.shared_warm.away_total
        return {"cold": self.presence.away_total, "warm": warm}

    def is_away(self) -> dict[str, Callable[[], bool]]:
        """By store: whether it is away now."""
        shared = self.shared_warm
        return {
            "cold": lambda: self.presence.is_away,
            "disk": lambda: self.spooler.disk_is_low,
            "warm": lambda: shared is not None and shared.is_away,
        }


async def compose(settings: Settings, make_files: Callable[[Path], Files], stores: Stores) -> Core:
    cold = stores.cold
    to_spooler, spooler_inbox = trio.open_memory_channel[SpoolerMessage](SPOOLER_INBOX)
    to_dispatch, dispatch_inbox = trio.open_memory_channel[QueueSeen | Pinned](QUEUES_MAX)

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
        decides=not stores.is_shared,
    )
    # What moves between them and warm.
    own_warm = MemoryWarm(memory.bytes_max)
    shared_warm = None
    if stores.remote is not None:
        shared_warm = SharedWarm(stores.remote, own_warm, settings.warm.valid, wall_ms)
    warm: WarmQueue = shared_warm or own_warm
    ring = EventRing()
    events = EventLog(
        settings.events, open_sink(settings.events, settings.state_dir), wall_ms, ring.note
    )

    def see_queue(queue: str) -> None:
        """Something of it is in a store that other daemons share. What this host does not know is
        for those that do."""
        if catalogue.queue(queue) is not None:
            # If very many come at once, they are seen the next time.
            with suppress(trio.WouldBlock):
                to_dispatch.send_nowait(QueueSeen(queue))

    routing, failover = Routing(), Failover()
    breakers = Breakers(events.note)
    presence = Presence()
    promoter = Promoter(
        routing,
        warm,
        cold,
        catalogue.settings_of,
        catalogue.paused_flows,
        settings.cold.acquire_timeout,
        wall_ms,
        memory.bytes_max,
        shared_warm.out.forget_locks if shared_warm is not None else None,
        see_queue if stores.is_shared else None,
        presence,
    )

    def has_come_to_cold(queue: str, priority: int | None = None) -> None:
        promoter.wake(queue, priority)
        streams.wake(queue)

    stores.wakes.append(has_come_to_cold)
    hand_over = HandOver(cold, to_spooler.clone(), failover, has_come_to_cold, presence)
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
    cold.keep_keys(lambda queue: key_rule(catalogue.settings_of(queue)))
    tallies = Tallies()
    check_webhooks(settings.notifications)
    notifier = Notifier(
        settings.notifications,
        make_ways(catalogue, to_spooler.clone()),
        wall_ms,
        socket.gethostname(),
        events.note,
    )
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
        Observers(history, FailureLog(), tallies, notifier, events),
        presence,
    )
    fleet = None
    if shared_warm is not None and stores.remote is not None:
        from daemon.stores.valkey.lost_owners import LostOwners
        from daemon.stores.valkey.shared_limits import SharedBreaker, SharedRate

        server = stores.remote.server
        to_owner = (to_spooler.clone(), settlement, cold, router.place, promoter.wake, see_queue)
        fleet = Fleet(
            Owner(shared_warm, *to_owner, presence),
            FleetBreakers(breakers, SharedBreaker(server, stores.daemon)),
            SharedRate(server),
            LostOwners(server, stores.daemon),
        )
    send_limit = SendLimit(settings.global_send_limit)
    cores = len(os.sched_getaffinity(0))
    dispatch = Dispatch(
        dispatch_inbox,
        catalogue,
        router,
        promoter,
        Shared(
            warm,
            settlement,
            breakers,
            send_limit,
            wall_ms,
            cores,
            events,
            tallies,
            socket.gethostname(),
        ),
        _open_handler,
        None if fleet is None else fleet.rate,
    )
    return Core(
        to_spooler=to_spooler,
        to_dispatch=to_dispatch,
        spool=spool,
        unconfirmed=unconfirmed,
        catalogue=catalogue,
        spooler=spooler,
        warm=warm,
        shared_warm=shared_warm,
        routing=routing,
        failover=failover,
        presence=presence,
        hand_over=hand_over,
        promoter=promoter,
        router=router,
        streams=streams,
        events=events,
        ring=ring,
        breakers=breakers,
        history=history,
        tallies=tallies,
        notifier=notifier,
        settlement=settlement,
        send_limit=send_limit,
        dispatch=dispatch,
        fleet=fleet,
        has_come_to_cold=has_come_to_cold,
        see_queue=see_queue,
        clock_watch=ClockWatch(own_warm, cold),
    )


def key_rule(settings: QueueSettings) -> KeyRule:
    return KeyRule(settings.unique, round(settings.unique_window * 1000))


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
