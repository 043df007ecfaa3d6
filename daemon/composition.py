"""The daemon's parts, composed: the channels, the actors, and who knows whom.

    client ──► Ingest ──Append──► Spooler ──Lease──► Router ──► warm ──► WorkerGroup ──► handler
                 ◄───answers───┘     ▲                 │ HandOver ▲ ▲         │
                                     │                 ▼          │ └─ Pull   │ Settlement
                                     └──── Settle ─── cold ── Promoter ◄──────┘

Nothing runs yet: daemon/app.py starts and stops what is made here.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from actors.breaker import Breakers
from actors.catalogue import Catalogue, not_found
from actors.clock import wall_ms
from actors.control import Controls
from actors.cron import Cron
from actors.cron_control import CronControl
from actors.dead_groups import DeadGroups
from actors.deciding import Deciding
from actors.decisions import Follower
from actors.dispatch import Dispatch
from actors.event_log import EventLog
from actors.event_ring import EventRing
from actors.failover import Failover
from actors.fleet_breakers import FleetBreakers
from actors.fleet_control import FleetControl
from actors.handling import Handler, HandlerUnusable
from actors.handover import HandOver
from actors.history import History
from actors.ingest import Ingest
from actors.intake import QUEUES_MAX
from actors.items import make_items
from actors.jobs import Jobs
from actors.key_control import KeyControl
from actors.keyed_intake import WAITING_MAX, KeyedIntake
from actors.keys import KeyRule
from actors.messages import Inquire, OfferRun, Pinned, QueueSeen, SpoolerMessage
from actors.metrics import Metrics, Sources
from actors.origin import Origin, unpack_origin
from actors.owner import Owner
from actors.promoter import Promoter
from actors.pull import Pull
from actors.pull_settling import PullSettling
from actors.purging import Purging
from actors.queue_settings import QueueSettings
from actors.rate import SendLimit
from actors.receipts import Receipts
from actors.report import INQUIRIES_MAX, Reporter
from actors.router import Router, Routing
from actors.schedule_book import ScheduleBook
from actors.schedules import ScheduleSettings
from actors.settings import Settings
from actors.settlement import Settlement
from actors.shared_warm import SharedWarm
from actors.spooler import Spooler
from actors.streams import Streams
from actors.tallies import Tallies
from actors.tiers import Unconfirmed, WarmQueue, limits_of
from actors.warm import MemoryWarm
from actors.workers import Shared
from daemon.definitions import load_definitions, saver
from daemon.errors import CannotStart
from daemon.events import open_sink
from daemon.handlers import open_handler
from daemon.http.desk import ANSWER_S, Desk, within
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.listen import ListeningSocket
from daemon.memory import machine_limit_bytes, size_queues
from daemon.postgres.cold import PostgresCold
from daemon.postgres.writes import DECIDED
from daemon.schedules_file import load_schedules, schedules_saver
from daemon.stores import Stores
from daemon.valkey.lost_owners import LostOwners
from daemon.valkey.shared_limits import SharedBreaker, SharedRate
from forebay.errors import BadRun, Refused
from forebay.priorities import resolve

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
    owner: Owner | None
    """Of runs in a warm queue that a fleet shares."""
    fleet_breakers: FleetBreakers | None
    warm_is_away: Callable[[], bool]
    send_limit: SendLimit
    dispatch: Dispatch
    reporter: Reporter
    receipts: Receipts
    follower: Follower | None
    """Of what a fleet decides about writes."""
    keyed: KeyedIntake
    cron: Cron
    ingest: Ingest
    jobs: Jobs
    metrics: Metrics
    desk: Desk


async def compose(
    settings: Settings,
    make_files: Callable[[Path], Files],
    listening: ListeningSocket,
    stores: Stores,
) -> Parts:
    cold = stores.cold
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
        shared_warm.out.forget_locks if shared_warm is not None else None,
        see_queue if stores.is_shared else None,
    )

    def has_come_to_cold(queue: str, priority: int | None = None) -> None:
        promoter.wake(queue, priority)
        streams.wake(queue)

    def hear(said: str) -> None:
        """Another daemon's wake: a queue, or that something is decided about writes."""
        if said != DECIDED:
            has_come_to_cold(said)
        elif follower is not None:
            follower.wake()

    stores.wakes.append(hear)
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
    cold.keep_keys(lambda queue: key_rule(catalogue.settings_of(queue)))
    tallies = Tallies()
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
        tallies,
    )
    owner = fleet_breakers = fleet_rate = lost_owners = None
    if shared_warm is not None and stores.remote is not None:
        fleet_rate = SharedRate(stores.remote.server)
        lost_owners = LostOwners(stores.remote.server, stores.daemon)
        fleet_breakers = FleetBreakers(breakers, SharedBreaker(stores.remote.server, stores.daemon))
        owner = Owner(
            shared_warm,
            to_spooler.clone(),
            settlement,
            cold,
            router.place,
            promoter.wake,
            see_queue,
        )
    send_limit = SendLimit(settings.global_send_limit)
    cores = len(os.sched_getaffinity(0))
    dispatch = Dispatch(
        dispatch_inbox,
        catalogue,
        router,
        promoter,
        Shared(warm, settlement, breakers, send_limit, wall_ms, cores, events, tallies),
        _open_handler,
        fleet_rate,
    )

    # The socket's side.
    to_keyed, keyed_inbox = trio.open_memory_channel[OfferRun](WAITING_MAX)
    keyed = KeyedIntake(
        keyed_inbox,
        cold,
        to_dispatch.clone(),
        has_come_to_cold,
        lambda: spooler.disk_is_low,
    )

    def has_ticks(queue: str) -> None:
        see_queue(queue)
        has_come_to_cold(queue)

    def check_schedule(schedule: ScheduleSettings) -> int:
        return usable_priority(schedule, catalogue)

    book = ScheduleBook(
        settings.schedules,
        load_schedules(settings.state_dir),
        schedules_saver(settings.state_dir),
        check_schedule,
    )
    cron = Cron(book, cold.ticks, check_schedule, has_ticks)

    def more() -> dict[str, Any]:
        return describe(routing, failover, breakers, dispatch, settlement) | {
            "events": events.figures(),
            "history_dropped_total": history.dropped_total,
            "keyed": keyed.figures(),
            "cron": cron.figures(),
            "away_total": {
                "cold": promoter.away_total,
                "warm": 0 if shared_warm is None else shared_warm.away_total,
            },
            **metrics.for_report(),
        }

    reporter = Reporter(
        reporter_inbox, to_spooler.clone(), warm, cold, more, is_shared=stores.is_shared
    )
    follower = deciding = None
    if isinstance(cold, PostgresCold):
        follower = Follower(to_spooler.clone(), cold.decisions, spool.stage_ttl, wall_ms)
        deciding = Deciding(to_spooler.clone(), cold.decisions, follower)
    receipts = Receipts(to_spooler.clone(), cold, spool.receipt_ttl, wall_ms, deciding)
    pull = Pull(
        warm,
        PullSettling(settlement, catalogue.settings_of, wall_ms),
        catalogue.queue,
        lambda queue: None if catalogue.is_paused(queue) else catalogue.paused_flows(queue),
        tallies=tallies,
    )
    items = make_items(
        to_spooler.clone(),
        warm,
        cold,
        cold.items,
        cold.dead_letters,
        hand_over,
        history,
        promoter.wake,
        wall_ms,
        settings.socket.max_run_bytes,
        routing.lines,
    )
    purging = Purging(
        to_spooler.clone(),
        warm,
        cold.items,
        reporter.report,
        lambda queue: controls.check_known(queue),
        promoter.wake,
    )
    jobs = Jobs(cold.dead_letters, promoter.wake, wall_ms)
    controls = Controls(
        catalogue,
        cold.dead_letters,
        breakers,
        reporter.held_items,
        promoter.wake,
        wall_ms,
        {
            **receipts.operations,
            **streams.operations,
            **items.operations,
            **jobs.operations,
            **purging.operations,
            **KeyControl(cold).operations,
            **CronControl(cron, wall_ms).operations,
            **DeadGroups(cold.dead_letters).operations,
            **FleetControl(lost_owners, to_spooler.clone(), stores.daemon).operations,
        },
    )
    ingest = Ingest(
        settings.socket,
        [listening.listener],
        to_spooler.clone(),
        to_reporter,
        known_queue=lambda queue: catalogue.queue(queue) is not None,
        pull=pull,
        control=controls,
        rows=streams,
        keyed=to_keyed,
        is_keyed=lambda queue: catalogue.settings_of(queue).unique != "off",
    )
    is_away: dict[str, Callable[[], bool]] = {
        "cold": lambda: promoter.cold_is_away,
        "disk": lambda: spooler.disk_is_low,
        "warm": lambda: shared_warm is not None and shared_warm.is_away,
    }
    metrics = Metrics(
        Sources(
            report=reporter.report,
            warm=warm,
            cold=cold,
            catalogue=catalogue,
            tallies=tallies,
            groups=dispatch.groups,
            breakers=breakers,
            spool=spooler.counts,
            spool_settings=spool,
            pull=pull,
            ingest=ingest.figures,
            send_limit=send_limit,
            streams=routing.streams,
            is_away=is_away,
            now_ms=wall_ms,
        )
    )
    # The HTTP side's.
    desk = Desk(
        settings=settings,
        catalogue=catalogue,
        perform=within(ANSWER_S, controls.perform),
        report=within(ANSWER_S, reporter.report),
        pull=pull,
        to_spooler=to_spooler.clone(),
        to_keyed=to_keyed.clone(),
        spooler=spooler,
        warm=warm,
        cold=cold,
        wake_promoter=promoter.wake,
        dispatch=dispatch,
        breakers=breakers,
        events=ring,
        is_away=is_away,
        stopping=trio.Event(),
        metrics=metrics,
    )
    return Parts(
        unconfirmed=unconfirmed,
        to_spooler=to_spooler,
        to_dispatch=to_dispatch,
        catalogue=catalogue,
        spooler=spooler,
        promoter=promoter,
        streams=streams,
        events=events,
        breakers=breakers,
        history=history,
        settlement=settlement,
        owner=owner,
        fleet_breakers=fleet_breakers,
        warm_is_away=lambda: shared_warm is not None and shared_warm.is_away,
        send_limit=send_limit,
        dispatch=dispatch,
        reporter=reporter,
        receipts=receipts,
        follower=follower,
        keyed=keyed,
        cron=cron,
        ingest=ingest,
        jobs=jobs,
        metrics=metrics,
        desk=desk,
    )


def key_rule(settings: QueueSettings) -> KeyRule:
    return KeyRule(settings.unique, round(settings.unique_window * 1000))


def usable_priority(schedule: ScheduleSettings, catalogue: Catalogue) -> int:
    """The priority of a schedule's ticks. Refused if its queue or its priority does not exist."""
    if catalogue.queue(schedule.queue) is None:
        raise not_found(schedule.queue)
    try:
        return resolve(schedule.priority, lambda: catalogue.priorities)
    except BadRun as problem:
        raise Refused("BAD_REQUEST", str(problem)) from problem


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
