"""What people and programs ask of the daemon: the socket, control, the figures, the HTTP side.

Built on what stores and delivers (daemon/composition.py), of which it owns nothing. Nothing runs
yet: daemon/app.py starts and stops it.
"""

import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from actors.config.catalogue import Catalogue, not_found
from actors.config.schedule_book import ScheduleBook
from actors.config.schedules import ScheduleSettings
from actors.config.settings import Settings
from actors.config.triggers import all_schedules
from actors.control.control import Controls
from actors.control.dead_groups import DeadGroups
from actors.control.dead_jobs import Jobs
from actors.control.fleet import FleetControl
from actors.control.items import make_items
from actors.control.keys import KeyControl
from actors.control.purge import Purging
from actors.control.schedules import CronControl
from actors.control.stats import QueueStats
from actors.control.streams import StreamControl
from actors.control.triggers import TriggerControl
from actors.control.writes import Receipts
from actors.cron.cron import Cron
from actors.cron.triggers import Triggers
from actors.fleet.write_follower import Follower
from actors.fleet.writes import Deciding
from actors.ingest.ingest import Ingest
from actors.keys.intake import WAITING_MAX, KeyedIntake
from actors.keys.recall import Recalling
from actors.keys.take_back import TakingBack
from actors.metrics.metrics import Metrics, Sources
from actors.model.clock import wall_ms
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.ports.writes import DECIDED
from actors.spooler.messages import Inquire, OfferRun
from actors.spooler.report import INQUIRIES_MAX, Reporter
from actors.workers.pull import Pull
from actors.workers.pull_reports import PullSettling
from daemon.composition import Core, describe, key_rule
from daemon.http.desk import ANSWER_S, Desk, within
from daemon.state.kept_file import load_schedules, schedules_saver
from daemon.stores.open import Stores
from daemon.triggering import make_triggers
from forebay.errors import BadRun, Refused
from forebay.priorities import resolve


@dataclass(frozen=True, slots=True)
class Faces:
    reporter: Reporter
    receipts: Receipts
    follower: Follower | None
    recalling: Recalling | None
    """Of what a fleet decides about writes."""
    keyed: KeyedIntake
    cron: Cron
    triggers: Triggers
    ingest: Ingest
    jobs: Jobs
    metrics: Metrics
    desk: Desk


def compose_faces(settings: Settings, core: Core, stores: Stores) -> Faces:
    cold, catalogue, to_spooler = stores.cold, core.catalogue, core.to_spooler
    wake_promoter = core.promoter.wake
    lost_owners = None if core.fleet is None else core.fleet.lost_owners
    to_reporter, reporter_inbox = trio.open_memory_channel[Inquire](INQUIRIES_MAX)
    to_keyed, keyed_inbox = trio.open_memory_channel[OfferRun](WAITING_MAX)
    recalling = None
    if stores.shared_cold is not None:
        recalling = Recalling(stores.shared_cold.recalls, presence=core.presence)
        stores.wakes.append(recalling.wake)
    taking_back = TakingBack(
        core.warm,
        cold,
        core.failover,
        core.routing.lines,
        lambda queue: key_rule(catalogue.settings_of(queue)),
        recalling,
    )
    if recalling is not None:
        recalling.give_back = taking_back.take_back
    keyed = KeyedIntake(
        keyed_inbox,
        cold,
        core.to_dispatch.clone(),
        core.has_come_to_cold,
        lambda: core.spooler.disk_is_low,
        core.spooler.recent,
        core.presence,
        taking_back,
    )

    def has_ticks(queue: str) -> None:
        core.see_queue(queue)
        core.has_come_to_cold(queue)

    def check_schedule(schedule: ScheduleSettings) -> int:
        return usable_priority(schedule, catalogue)

    book = ScheduleBook(
        all_schedules(settings.schedules, settings.triggers),
        load_schedules(settings.state_dir),
        schedules_saver(settings.state_dir),
        check_schedule,
    )
    failed = core.notifier.trigger_failed
    cron = Cron(book, cold.ticks, check_schedule, has_ticks, core.presence, failed)

    async def withdraw(item_id: str) -> None:
        await items.withdraw(item_id)

    triggers = make_triggers(settings, core, stores, has_ticks, withdraw)

    def more() -> dict[str, Any]:
        known = (core.routing, core.failover, core.breakers, core.dispatch, core.settlement)
        return describe(*known) | {
            "events": core.events.figures(),
            "history_dropped_total": core.history.dropped_total,
            "internal_errors_total": INTERNAL_ERRORS.total,
            "keyed": keyed.figures(),
            "cron": cron.figures(),
            "triggers": triggers.figures(),
            "notifications": core.notifier.figures(),
            "away_total": core.away_total(),
            **metrics.for_report(),
        }

    reporter = Reporter(
        reporter_inbox,
        to_spooler.clone(),
        core.warm,
        cold,
        more,
        is_shared=stores.is_shared,
        presence=core.presence,
    )
    follower = deciding = decisions = None
    if stores.shared_cold is not None:
        decisions = stores.shared_cold.decisions
        follower = Follower(
            to_spooler.clone(), decisions, core.spool.stage_ttl, wall_ms, core.presence
        )
        deciding = Deciding(to_spooler.clone(), decisions, follower)
        stores.wakes.append(partial(hear_decided, follower))
    receipts = Receipts(to_spooler.clone(), cold, core.spool.receipt_ttl, wall_ms, deciding)
    pull = Pull(
        core.warm,
        PullSettling(core.settlement, catalogue.settings_of, wall_ms),
        catalogue.queue,
        lambda queue: None if catalogue.is_paused(queue) else catalogue.paused_flows(queue),
        tallies=core.tallies,
        host=socket.gethostname(),
    )
    items = make_items(
        to_spooler.clone(),
        core.warm,
        cold,
        cold.items,
        cold.dead_letters,
        core.hand_over,
        core.history,
        wake_promoter,
        wall_ms,
        settings.socket.max_run_bytes,
        core.routing.lines,
        lambda: metrics.tasks(),
        socket.gethostname(),
    )
    purging = Purging(
        to_spooler.clone(),
        core.warm,
        core.routing.lines,
        cold.items,
        cold,
        reporter.report,
        lambda queue: controls.check_exists(queue),
        wake_promoter,
    )
    figures = QueueStats(
        reporter.report, lambda queue: controls.check_exists(queue), lambda: metrics
    )
    jobs = Jobs(cold.dead_letters, wake_promoter, wall_ms)
    controls = Controls(
        catalogue,
        cold.dead_letters,
        core.breakers,
        reporter.seen,
        wake_promoter,
        wall_ms,
        {
            **receipts.operations,
            **StreamControl(core.streams).operations,
            **items.operations,
            **jobs.operations,
            **purging.operations,
            **figures.operations,
            **KeyControl(cold).operations,
            **CronControl(cron, wall_ms, lambda name: name in triggers.book.triggers).operations,
            **TriggerControl(triggers, cron, wall_ms).operations,
            **DeadGroups(cold.dead_letters).operations,
            **FleetControl(lost_owners, to_spooler.clone(), stores.daemon, decisions).operations,
        },
    )
    ingest = Ingest(
        settings.socket,
        to_spooler.clone(),
        to_reporter,
        known_queue=lambda queue: catalogue.queue(queue) is not None,
        pull=pull,
        control=controls,
        rows=core.streams,
        keyed=to_keyed,
        is_keyed=lambda queue: catalogue.settings_of(queue).unique != "off",
    )
    is_away = core.is_away()
    metrics = Metrics(
        Sources(
            report=reporter.report,
            warm=core.warm,
            cold=cold,
            catalogue=catalogue,
            tallies=core.tallies,
            groups=core.dispatch.groups,
            breakers=core.breakers,
            spool=core.spooler.counts,
            spool_settings=core.spool,
            pull=pull,
            ingest=ingest.figures,
            send_limit=core.send_limit,
            streams=core.routing.streams,
            is_away=is_away,
            now_ms=wall_ms,
        )
    )
    desk = Desk(
        settings=settings,
        catalogue=catalogue,
        perform=within(ANSWER_S, controls.perform),
        report=within(ANSWER_S, reporter.report),
        pull=pull,
        to_spooler=to_spooler.clone(),
        to_keyed=to_keyed.clone(),
        spooler=core.spooler,
        warm=core.warm,
        cold=cold,
        wake_promoter=wake_promoter,
        dispatch=core.dispatch,
        breakers=core.breakers,
        events=core.ring,
        is_away=is_away,
        stopping=trio.Event(),
        metrics=metrics,
    )
    return Faces(
        reporter=reporter,
        receipts=receipts,
        follower=follower,
        recalling=recalling,
        keyed=keyed,
        cron=cron,
        triggers=triggers,
        ingest=ingest,
        jobs=jobs,
        metrics=metrics,
        desk=desk,
    )


def hear_decided(follower: Follower, said: str) -> None:
    """Another daemon's wake, which may be that something is decided about writes."""
    if said == DECIDED:
        follower.wake()


def usable_priority(schedule: ScheduleSettings, catalogue: Catalogue) -> int:
    """The priority of a schedule's ticks. Refused if its queue or its priority does not exist."""
    if catalogue.queue(schedule.queue) is None:
        raise not_found(schedule.queue)
    try:
        return resolve(schedule.priority, lambda: catalogue.priorities)
    except BadRun as problem:
        raise Refused("BAD_REQUEST", str(problem)) from problem
