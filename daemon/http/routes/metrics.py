"""/api/v2/metrics/: waiting items by flow, running batches, handlers, and the last hour.

The first is large if there are many flows: it is made once per snapshot, in a thread, and encoded
without a model per entry (daemon/http/flow_entries.py).
"""

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
import trio
from fastapi import APIRouter, Query, Response

from actors.metrics.metrics import Metrics
from actors.metrics.samples import EVERY_S, SAMPLES_MAX, WHOLE, Sample, thinned
from actors.metrics.snapshot import Snapshot
from actors.model.clock import wall_ms
from actors.model.slices import first_item_id
from actors.workers.sending import Task
from daemon.http.access import Reader
from daemon.http.action_classes import action_class, flow_type, plugins
from daemon.http.doors import Doors
from daemon.http.flow_entries import FlowEntries, iso
from daemon.http.models.metrics import ActionPlugins, Detailed, MetricsHistory, Running
from daemon.http.prometheus.rendered import Rendered
from forebay.limits import QUEUE_BYTES_MAX

TASKS_MAX: Final = 1000
SERIES_MAX: Final = 64

Queues = Annotated[
    Sequence[Annotated[str, Query(max_length=QUEUE_BYTES_MAX)]],
    Query(
        description="Queues, by name; empty or left out: the daemon as a whole",
        max_length=SERIES_MAX,
    ),
]
Minutes = Annotated[int, Query(ge=1, le=60, description="How far back")]
Points = Annotated[int, Query(ge=2, le=SAMPLES_MAX, description="Samples of a series, at most")]


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2/metrics", tags=["metrics"])
    rendered = Rendered()
    metrics = doors.metrics
    entries = FlowEntries(partial(told_of, metrics=metrics))
    host = socket.gethostname()

    @router.get("/queues/detailed", operation_id="showQueueMetrics", response_model=Detailed)
    async def show_detailed(_: Reader) -> Response:
        """Counts the items that wait in warm and in cold, by queue, flow and action."""
        snapshot = await metrics.snapshot()
        render = partial(entries.render, snapshot)
        return json_answer(await rendered.answer(snapshot, "detailed", render))

    @router.get("/queues/action-plugins", operation_id="showActionPlugins")
    async def show_plugins(_: Reader) -> ActionPlugins:
        """Lists the installed distributions that provide handlers, with their queues."""
        snapshot = await metrics.snapshot()
        found = await trio.to_thread.run_sync(action_plugins, snapshot, metrics)
        return ActionPlugins.model_validate({"plugins": found})

    @router.get("/queues/running", operation_id="showRunningTasks", response_model=Running)
    async def show_running(_: Reader) -> Response:
        """Lists the batches that workers and consumers have leased, the longest running first."""
        tasks = sorted(doors.workers.tasks(), key=lambda task: task.began_ms)
        render = partial(running, tasks, metrics, host, wall_ms())
        return json_answer(await trio.to_thread.run_sync(render))

    @router.get("/history", operation_id="showMetricsHistory", response_model=MetricsHistory)
    async def show_history(
        _: Reader, queue: Queues = (), minutes: Minutes = 60, points: Points = SAMPLES_MAX
    ) -> Response:
        """Samples of the last hour, rates, and when the spool will be full or empty."""
        found = history(metrics, queue or (WHOLE,), minutes * 60, points)
        return json_answer(msgspec.json.encode(found))

    return router


def json_answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def told_of(queue: str, metrics: Metrics) -> dict[str, str]:
    settings = metrics.catalogue.settings_of(queue)
    return {
        "queue": queue,
        "actionClass": action_class(settings),
        "flowType": flow_type(settings, is_stream=metrics.is_stream(queue)),
    }


def action_plugins(snapshot: Snapshot, metrics: Metrics) -> list[dict[str, Any]]:
    queues: dict[str, list[str]] = {}
    for queue in sorted(snapshot.defined | snapshot.report["queues"].keys()):
        queues.setdefault(action_class(metrics.catalogue.settings_of(queue)), []).append(queue)
    return [
        {
            "actionClass": name,
            "plugin": plugin.distribution,
            "version": plugin.version,
            "queues": queues[name],
        }
        for name, plugin in plugins(queues).items()
    ]


def running(tasks: list[Task], metrics: Metrics, host: str, now_ms: int) -> bytes:
    return msgspec.json.encode(
        {
            "timestamp": iso(now_ms),
            "total": len(tasks),
            "tasks": [described(task, metrics, host, now_ms) for task in islice(tasks, TASKS_MAX)],
        }
    )


def described(task: Task, metrics: Metrics, host: str, now_ms: int) -> dict[str, Any]:
    first = task.slices[0]
    head = first.run.head
    return {
        "queue": task.queue,
        "actionClass": action_class(metrics.catalogue.settings_of(task.queue)),
        "flowName": head.flow,
        "actionName": head.action,
        "did": first_item_id(first),
        "count": task.items,
        "startTime": iso(task.began_ms),
        "runningForMs": max(0, now_ms - task.began_ms),
        "appName": f"{host}/{task.queue}/{task.worker}",
        "heartbeatThresholdMs": task.lease_ms,
    }


def history(metrics: Metrics, queues: Sequence[str], seconds: float, points: int) -> dict[str, Any]:
    spool = thinned(metrics.spool_points(seconds), points)
    coming = metrics.spool_forecast()
    return {
        "timestamp": iso(wall_ms()),
        "intervalSeconds": EVERY_S,
        "series": [series(metrics, queue, seconds, points) for queue in dict.fromkeys(queues)],
        "queues": metrics.samples.queues(),
        "spool": {
            "at": [point.at_ms for point in spool],
            "bytes": [point.bytes for point in spool],
            "freeBytes": [point.free_bytes for point in spool],
            "maxBytes": metrics.spool_max_bytes,
        },
        "forecast": {
            "direction": coming.direction,
            "seconds": coming.seconds,
            "bytesPerSecond": coming.bytes_a_second,
        },
    }


def series(metrics: Metrics, queue: str, seconds: float, points: int) -> dict[str, Any]:
    samples = thinned(metrics.samples.of(queue, seconds), points)
    columns = dict(zip(_COLUMNS, _transposed(samples), strict=True))
    return {
        "queue": queue,
        **columns,
        "rates": metrics.samples.rates(queue)._asdict(),
    }


_COLUMNS: Final = ("at", *Sample._fields[1:-1], "oldestAgeSeconds")


def _transposed(samples: list[Sample]) -> Iterator[list[int]]:
    return (
        (list(column) for column in zip(*samples, strict=True))
        if samples
        else ([] for _ in _COLUMNS)
    )
