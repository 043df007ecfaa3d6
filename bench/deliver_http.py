"""b. To a local http server: batches of 500, plain and from a template, and one item a request.

A backlog is pushed while the queue is paused, into a warm tier with room for all of it, and timed
from `resume` to the last item settled: the handler is measured, not the producer or the cold store.
The sink counts what it got, and it must be exactly what the books say. Beside it ready-made
requests of the same size, as many at a time, from a loop that does nothing else. The template
(six fields in an object, a list of those in another) is compared with the plain batches instead.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from bench.daemon_process import Daemon, places
from bench.deliver_books import deliver, fill, read_books, troubles_told, wait_for
from bench.deliver_sink import Sink, bare_posts
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.producers import RUN_ITEMS
from forebay import Client, Control

BATCH_ITEMS: Final = 500
BATCH_WORKERS: Final = 4
SINGLE_WORKERS: Final = 16
BATCHES_GOAL: Final = 100_000
SINGLES_GOAL: Final = 3000
TEMPLATED_RATIO: Final = 0.6
TEMPLATE: Final = {
    "item": {
        "attributes": {"type": "Contact"},
        **{
            name.title(): f"{{{{ payload.{name} }}}}"
            for name in ("customer", "name", "email", "region", "stage", "amount")
        },
    },
    # Each on a line of its own, so that the sink can count them.
    "body": '{"allOrNone": false, "records": [{{ items | join(",\\n") }}]}',
}
ROOM: Final = {"warm_max_items": 10_000_000, "warm_max_bytes": "4Gi"}


@dataclass(slots=True)
class _Case:
    queue: str
    what: str
    unit: str
    batch_items: int
    workers: int
    goal: float
    """Items a second, too: that many are pushed for each second of the plan, and half more."""
    encoding: str = "ndjson"
    request: dict[str, Any] | None = None
    rates: list[float] = field(default_factory=list)
    bare_rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def settings(self, url: str) -> dict[str, Any]:
        return {
            "handler": {
                "type": "http",
                "url": url,
                "batch_items": self.batch_items,
                "encoding": self.encoding,
                "request": self.request,
            },
            "workers": {"count": self.workers},
            **ROOM,
        }

    def items(self, plan: Plan) -> int:
        wanted = self.goal * plan.seconds * 1.5
        return max(1, round(wanted / RUN_ITEMS)) * RUN_ITEMS


def _cases() -> list[_Case]:
    batches = f"http, batches of {BATCH_ITEMS}, {BATCH_WORKERS} workers"
    raw = f"http, raw batches of {BATCH_ITEMS}, {BATCH_WORKERS} workers"
    singles = f"http, one item a request, {SINGLE_WORKERS} workers"
    goals = BATCHES_GOAL, SINGLES_GOAL
    return [
        _Case("batches", batches, "items/s", BATCH_ITEMS, BATCH_WORKERS, goals[0]),
        _Case(
            "templated",
            f"http, templated batches of {BATCH_ITEMS}, {BATCH_WORKERS} workers",
            "items/s",
            BATCH_ITEMS,
            BATCH_WORKERS,
            goals[0],
            request=TEMPLATE,
        ),
        _Case("raw", raw, "items/s", BATCH_ITEMS, BATCH_WORKERS, goals[0], "raw"),
        _Case("singles", singles, "requests/s", 1, SINGLE_WORKERS, goals[1]),
    ]


def to_http(plan: Plan) -> list[Row]:
    cases = _cases()
    with ExitStack() as stack:
        at = stack.enter_context(places("deliver-b"))
        sink = stack.enter_context(Sink(at.state))
        queues = {case.queue: case.settings(sink.url) for case in cases}
        daemon = stack.enter_context(Daemon(at, {"max_bytes": "64Gi"}, queues))
        stack.enter_context(troubles_told(daemon))
        for _ in plan.each_round("b: http"):
            for case in cases:
                _measure(daemon, sink, case, case.items(plan))
        name = sink.name
    plain = cases[0]
    return [row for case in cases for row in _rows(case, name, plain)]


def _measure(daemon: Daemon, sink: Sink, case: _Case, items: int) -> None:
    prepare(daemon, case.queue, items)
    before = sink.counters()
    delivered = deliver(daemon, case.queue, lambda client: _resume(client, case.queue))
    got = sink.counters().since(before)
    if not items == delivered.items == got.items:
        raise RuntimeError(f"{items} pushed, {delivered.items} delivered, {got.items} in the sink")
    case.rates.append(delivered.items_per_s)
    case.cpu_us.append(delivered.cpu_us_per_item)

    started = time.perf_counter()
    bare_posts(sink.port, case.workers, got.bytes // got.requests, got.requests)
    took = time.perf_counter() - started
    case.bare_rates.append(sink.counters().since(before).since(got).requests / took)
    case.bare_rates[-1] *= items / got.requests


def prepare(daemon: Daemon, queue: str, items: int) -> None:
    """A backlog in warm, not delivered yet."""
    with daemon.connect() as client:
        Control(client.control).pause(queue)
        fill(client, queue, items)
        wait_for(client, queue, lambda books: books["warm"] == items)
        read_books(client, queue)


def _resume(client: Client, queue: str) -> None:
    Control(client.control).resume(queue)


def _rows(case: _Case, sink_name: str, plain: _Case) -> list[Row]:
    if case.request is not None:
        beside, rates = "plain batches, in the same run", plain.rates
        goal: Goal | None = Goal(ratio_min=TEMPLATED_RATIO)
    else:
        beside, rates = f"ready-made requests to the same {sink_name}", case.bare_rates
        goal = Goal(value_min=case.goal) if case.encoding == "ndjson" else None
    samples = Samples.of(case.rates)
    return [
        Row("b", case.what, case.unit, samples, beside, Samples.of(rates), goal=goal),
        Row("b", f"processor time for an item, {case.what}", "µs", Samples.of(case.cpu_us)),
    ]
