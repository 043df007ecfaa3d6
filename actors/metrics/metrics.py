"""Metrics: observes all actors and owns nothing but the samples of the last hour.

Callers ask for a `snapshot`; within a second all of them get the same one, and only one is made at
a time. If making one takes long, callers get the previous one. Every 5 s a snapshot is kept as a
sample of each queue (actors/metrics/samples.py). Actors count their own work in plain numbers
(actors/observers/tallies.py, actors/spooler/upkeep.py), so the cost of being watched does not
grow with the number of watchers.

Nothing is durable. On cancel a snapshot in the making is abandoned. A store or journal that does
not answer in time keeps its last values, and the age of the snapshot shows it. It cannot show all
stores at one moment.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final, NamedTuple, Protocol

import trio

from actors.config.catalogue import Catalogue
from actors.cron.cron import Cron
from actors.keys.keys import Keys
from actors.metrics.books import Books
from actors.metrics.flow_states import FlowStates, not_known
from actors.metrics.forecast import Forecast, forecast
from actors.metrics.samples import EVERY_S, SAMPLES_MAX, WHOLE, Samples, sample_of
from actors.metrics.snapshot import FlowKey, QueueFigures, Snapshot, freeze
from actors.model.attempts import Attempts
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.latencies import Percentiles
from actors.observers.observers import Observers
from actors.ports.tiers import (
    Fill,
    FlowCount,
    Limits,
    StoreUnavailable,
    WarmFlow,
    limits_of,
)
from actors.tiers.tiers import Tiers
from actors.workers.workers import Workers
from forebay.item import FAILURE_REASONS

FRESH_S: Final = 1.0
PATIENCE_S: Final = 0.05
STALE_S: Final = 15.0
"""A snapshot older than this is worth waiting for a new one."""
ANSWER_S: Final = 5.0
"""How long the owners may take to answer before their last values are shown instead."""
OLDEST_S: Final = 5.0
"""How old the data about the oldest items in cold may be: one index lookup per flow."""
STEP: Final = 100
"""How many queues are processed before other tasks get a turn: at most a millisecond's work."""


class HasFigures(Protocol):
    def figures(self) -> dict[str, Any]: ...


class SpoolPoint(NamedTuple):
    at_ms: int
    bytes: int
    disk_bytes: int
    free_bytes: int


class Metrics:
    def __init__(
        self,
        catalogue: Catalogue,
        tiers: Tiers,
        workers: Workers,
        keys: Keys,
        cron: Cron,
        observers: Observers,
        *,
        is_shared: bool,
    ) -> None:
        """`is_shared`: other daemons use the same cold store."""
        self.catalogue = catalogue
        self.books = Books(tiers, is_shared=is_shared)
        self.ingest: HasFigures | None = None
        """The socket, once it is there: it is built last, because its requests ask the metrics."""
        self._tiers = tiers
        self._workers = workers
        self._keys = keys
        self._cron = cron
        self._observers = observers
        self._making = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._refreshed = trio.Event()
        """Set while no background refresh is under way."""
        self._refreshed.set()
        self._latest: Snapshot | None = None
        self._made_at = -FRESH_S
        self._fills: Mapping[str, Fill] = {}
        self._warm_flows: Sequence[WarmFlow] = ()
        self._cold_flows: Sequence[FlowCount] = ()
        self._oldest: Mapping[FlowKey, int] = {}
        self._oldest_at = -OLDEST_S
        self._flow_states = FlowStates()
        self._oldest_ms: Mapping[str, int] = {}
        """Oldest enqueue time per queue, of the latest snapshot."""
        self._limits: Mapping[str, Limits] = {}
        self._limits_of = -1
        """The number of catalogue changes at which the limits were read."""
        self.samples = Samples()
        self._spool: deque[SpoolPoint] = deque(maxlen=SAMPLES_MAX)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await self._sample_on()

    async def snapshot(self) -> Snapshot:
        """At most a second old if the owners answer at once. If the disk is slow, returns the
        previous one, and the next caller gets the new one."""
        latest = self._latest
        if latest is None or self._nursery is None:
            return await self._fresh()
        if self._age_s() >= FRESH_S:
            if self._refreshed.is_set():
                self._refreshed = trio.Event()
                self._nursery.start_soon(self._refresh, self._refreshed)
            with trio.move_on_after(PATIENCE_S if self._age_s() < STALE_S else ANSWER_S):
                await self._refreshed.wait()
        return self._latest or latest

    async def _refresh(self, refreshed: trio.Event) -> None:
        try:
            with suppress(StoreUnavailable):
                await self._fresh()
        finally:
            refreshed.set()

    async def _fresh(self) -> Snapshot:
        """Waits as long as it takes; one at a time."""
        async with self._making:
            if self._latest is None or self._age_s() >= FRESH_S:
                self._latest = await self._make()
                self._made_at = trio.current_time()
            return self._latest

    def _age_s(self) -> float:
        return trio.current_time() - self._made_at

    # Derived figures, for other actors.

    async def attempts(self, queue: str) -> Attempts:
        """Since the queue was first seen, by all daemons that share the cold store."""
        return await self._observers.attempts.of(queue)

    def is_stream(self, queue: str) -> bool:
        return self._tiers.states.is_stream(queue)

    def spool_points(self, seconds: float) -> list[SpoolPoint]:
        if not self._spool:
            return []
        after_ms = self._spool[-1].at_ms - seconds * 1000
        return [point for point in self._spool if point.at_ms >= after_ms]

    @property
    def spool_max_bytes(self) -> int:
        return self._tiers.spooler.settings.max_bytes

    def spool_forecast(self) -> Forecast:
        """When the journal will reach `max_bytes`, or be empty."""
        points = [(point.at_ms / 1000, float(point.bytes)) for point in self._spool]
        return forecast(points, self.spool_max_bytes)

    async def report(self) -> dict[str, Any]:
        """What STATS reports: the books, and the figures of all actors."""
        return {
            **await self.books.report(),
            **self._tiers.figures(),
            **self._workers.figures(),
            **self._observers.figures(),
            **self._cron.figures(),
            "keyed": self._keys.figures(),
            "internal_errors_total": INTERNAL_ERRORS.total,
            "ingest": self._ingest_figures(),
            **self.for_report(),
        }

    def _ingest_figures(self) -> dict[str, Any]:
        return {} if self.ingest is None else self.ingest.figures()

    def for_report(self) -> dict[str, Any]:
        """What STATS reports besides the books, from the last snapshot; asks no store."""
        latest, coming = self._latest, self.spool_forecast()
        if latest is None:
            return {}
        return {
            "oldest_ms": self._oldest_ms,
            "stores": dict(latest.stores),
            "forecast": {"spool": coming.direction, "seconds": coming.seconds},
            "failed": {
                queue: {reason: figures.failed.get(reason, 0) for reason in FAILURE_REASONS}
                for queue, figures in latest.tallies.items()
                if figures.failed
            },
        }

    # Making one.

    async def _make(self) -> Snapshot:
        report: list[dict[str, Any]] = []

        async def ask() -> None:
            with suppress(StoreUnavailable):
                report.append(await self.report())

        with trio.move_on_after(ANSWER_S):
            # In parallel: a store that serves one request at a time makes them wait only once.
            async with trio.open_nursery() as nursery:
                for look in (ask, self._look_at_warm, self._look_at_cold):
                    nursery.start_soon(look)
        if report:
            return await self._put_together(report[0])
        if self._latest is None:
            raise StoreUnavailable(f"the stores did not answer within {ANSWER_S:g} s")
        return self._latest

    async def _look_at_warm(self) -> None:
        warm = self._tiers.warm
        with suppress(StoreUnavailable):
            self._fills = await warm.fills()
            await trio.lowlevel.checkpoint()
            flows = await warm.flows()
            self._warm_flows = flows if flows != self._warm_flows else self._warm_flows

    async def _look_at_cold(self) -> None:
        cold = self._tiers.cold
        with suppress(StoreUnavailable):
            # Equal data stays the same object, and so does everything derived from it.
            flows = await cold.flows()
            is_new = flows != self._cold_flows
            self._cold_flows = flows if is_new else self._cold_flows
            is_due = trio.current_time() - self._oldest_at >= OLDEST_S
            if is_due or (is_new and not_known(flows, self._oldest)):
                oldest = await cold.oldest()
                self._oldest_at = trio.current_time()
                self._oldest = self._oldest if oldest == self._oldest else oldest

    async def _put_together(self, report: dict[str, Any]) -> Snapshot:
        workers = self._workers
        told = self._warm_flows, self._cold_flows, self._oldest
        waiting = await trio.to_thread.run_sync(self._flow_states.merged, *told)
        self._oldest_ms = waiting.oldest_ms
        tallies = await self._figures()
        return Snapshot(
            at_ms=self._tiers.now_ms(),
            report=report,
            defined=frozenset(self.catalogue.defined()),
            fills=self._fills,
            limits=self._limits_now(report["queues"]),
            flows=waiting.flows,
            tallies=tallies,
            staff={group.queue: group.staff() for group in workers.dispatch.groups()},
            breakers=workers.breakers.figures(),
            spool=deepcopy(self._tiers.spooler.counts),
            stores={store: not is_away for store, is_away in self._tiers.is_away().items()},
            ingest=self._ingest_figures(),
            sends_in_flight=workers.send_limit.inside,
            sends_waiting=workers.send_limit.waiting,
            pull_leases=workers.pull.leases,
        )

    def _limits_now(self, queues: Mapping[str, Any]) -> Mapping[str, Limits]:
        """The limits of these queues; read again when a definition has changed."""
        catalogue = self.catalogue
        if self._limits_of != catalogue.changes or self._limits.keys() != queues.keys():
            self._limits_of = catalogue.changes
            settings_of = catalogue.settings_of
            self._limits = {queue: limits_of(settings_of(queue)) for queue in queues}
        return self._limits

    async def _figures(self) -> dict[str, QueueFigures]:
        figures: dict[str, QueueFigures] = {}
        for number, (queue, tally) in enumerate(list(self._observers.tallies.queues.items()), 1):
            figures[queue] = freeze(tally)
            if not number % STEP:
                await trio.lowlevel.checkpoint()
        return figures

    # Keeping one.

    async def _sample_on(self) -> None:
        """While a store is away samples are missing; the actors that use it log the outage."""
        next_at = trio.current_time()
        sampled: Snapshot | None = None
        while True:
            next_at = max(next_at + EVERY_S, trio.current_time())
            with suppress(StoreUnavailable):
                snapshot = await self._fresh()
                if snapshot is not sampled:
                    self._sample(snapshot)
                sampled = snapshot
            await trio.sleep_until(next_at)

    def _sample(self, snapshot: Snapshot) -> None:
        at_ms, report = snapshot.at_ms, snapshot.report
        oldest = self._oldest_ms
        samples = {
            queue: sample_of(entry, at_ms, oldest.get(queue))
            for queue, entry in report["queues"].items()
        }
        whole = min(oldest.values(), default=None)
        self.samples.add({WHOLE: sample_of(report["daemon"], at_ms, whole)} | samples, at_ms)
        spool = report["spool"]
        self._spool.append(
            SpoolPoint(at_ms, spool["bytes"], spool["disk_bytes"], spool["free_bytes"])
        )


def in_milliseconds(found: Percentiles) -> dict[str, float]:
    return {
        "items": found.items,
        "average_ms": round(found.average_s * 1000, 3),
        "p50_ms": round(found.p50_s * 1000, 3),
        "p95_ms": round(found.p95_s * 1000, 3),
        "p99_ms": round(found.p99_s * 1000, 3),
    }
