"""c. A destination that stops: a million items overflow into the cold store, and come back.

Twice, because "the warm rate" means two things. With an http sink that is stopped and started
again, drained from cold against the same backlog drained from warm: what an operator sees. And
with a null handler whose queue is paused, drained against the same queue from push to settled:
nothing but the tiers is left to hold it up. Each round has a daemon of its own, so that its
largest RSS is of this and nothing else.

Into cold counts from the first push until nothing is left for the router to place. Out of cold
counts from the first delivery: how long a breaker waits before it tries again is its own setting.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from actors.config.queue import QueueSettings
from actors.config.settings import SocketSettings, SpoolSettings
from actors.tiers.router import TAKE_BYTES_MAX
from bench.backlog import backlog_items
from bench.daemon_process import DRAINED, Daemon, Places, places
from bench.deliver_books import deliver, fill, is_empty, is_routed, troubles_told, wait_for
from bench.deliver_http import ROOM, prepare
from bench.deliver_sink import Sink
from bench.figures import Goal, Row, Samples
from bench.items import ITEM_BYTES
from bench.plan import Plan
from bench.producers import Work, push_for, run_maker
from forebay import Client, Control

STORE_GOAL: Final = 100_000
DRAIN_GOAL: Final = 0.8
WARM_ITEMS: Final = 500_000
"""The backlog that the http sink's warm rate is measured with."""
MIB: Final = 1024 * 1024
WORKERS: Final = 4
BATCH_BYTES: Final = 4 * MIB

STOPPED: Final = "stopped"
WARM: Final = "warm"

PATIENT: Final = {
    # The probe finds out within a second that it is back, and what was tried meanwhile is not
    # given up, nor waits long for its next try.
    "breaker": {"reset_timeout": "1s"},
    "backoff": {"initial": "100ms", "max": "1s"},
    "max_retries": 65534,
}


@dataclass(slots=True)
class _Figures:
    stored: list[float] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)


def overflow(plan: Plan) -> list[Row]:
    items = backlog_items(plan)
    http, null = _Figures(), _Figures()
    name = ""
    for _ in plan.each_round(f"c: {items:,} items into cold and out again"):
        name = _stop_http(items, http)
        _pause_null(items, plan, null)
    return [
        *_rows(items, f"http sink stopped ({name})", "the same sink, from warm", http),
        *_rows(items, "null queue paused", "the same queue, push to settled", null),
    ]


def _stop_http(items: int, found: _Figures) -> str:
    with places("deliver-c") as at, Sink(at.state) as sink:
        warm = {WARM: _http(sink.url) | ROOM}
        warm_items = min(items, WARM_ITEMS)
        with Daemon(_under(at, "warm"), {}, warm) as daemon, troubles_told(daemon):
            prepare(daemon, WARM, warm_items)
            found.warm.append(deliver(daemon, WARM, partial(_resume, WARM)).items_per_s)
        sink.stop()
        stopped = {STOPPED: _http(sink.url) | PATIENT}
        with (
            Daemon(_under(at, "cold"), {}, stopped) as daemon,
            troubles_told(daemon, but_for="breaker.opened"),
        ):
            empty = daemon.memory_bytes()
            found.stored.append(_store(daemon, STOPPED, items))
            sink.start()
            found.drained.append(_drain(daemon, STOPPED, items))
            _note_memory(daemon, empty, found)
            if sink.counters().items < items:
                raise RuntimeError(f"the sink got {sink.counters().items} of {items} items")
        return sink.name


def _pause_null(items: int, plan: Plan, found: _Figures) -> None:
    queues = {DRAINED: {"handler": {"type": "null"}}}
    with places("deliver-c") as at, Daemon(at, {}, queues) as daemon, troubles_told(daemon):
        empty = daemon.memory_bytes()
        daemon.wait_until_quiet()
        make_run = run_maker(Work.SNAPPY, DRAINED)

        def push(client: Client) -> None:
            push_for(client, make_run, plan.seconds)

        found.warm.append(deliver(daemon, DRAINED, push).items_per_s)
        with daemon.connect() as client:
            Control(client.control).pause(DRAINED)
        found.stored.append(_store(daemon, DRAINED, items))
        with daemon.connect() as client:
            Control(client.control).resume(DRAINED)
        found.drained.append(_drain(daemon, DRAINED, items))
        _note_memory(daemon, empty, found)


def _store(daemon: Daemon, queue: str, items: int) -> float:
    """Items a second, until all of them wait in a tier."""
    with daemon.connect() as client:
        started = time.perf_counter()
        fill(client, queue, items)
        books = wait_for(client, queue, is_routed)
        took = time.perf_counter() - started
    if books["held"] != items or books["cold"] < items - QueueSettings().warm_max_items:
        raise RuntimeError(f"{items} items did not go cold: {books}")
    return items / took


def _drain(daemon: Daemon, queue: str, items: int) -> float:
    """Items a second, from the first that is delivered."""
    with daemon.connect() as client:
        left = wait_for(client, queue, lambda books: books["held"] < items)["held"]
        started = time.perf_counter()
        wait_for(client, queue, is_empty)
        if not left:
            raise RuntimeError(f"{items} items were drained before the books were read again")
        return left / (time.perf_counter() - started)


def _note_memory(daemon: Daemon, empty_bytes: int, found: _Figures) -> None:
    found.rss.append(daemon.memory_bytes("VmHWM") / MIB)
    found.bound.append((empty_bytes + memory_bound()) / MIB)


def memory_bound() -> int:
    """What the settings allow beside an empty daemon: pushes under way, a group that is being
    committed, runs kept in memory, runs that the router holds, warm, and one batch per worker, as
    stored and as sent."""
    spool, queue = SpoolSettings(), QueueSettings()
    warm_bytes = min(queue.warm_max_bytes, queue.warm_max_items * 2 * ITEM_BYTES)
    return (
        SocketSettings().inflight_bytes
        + spool.group_bytes_max
        + spool.inmemory_bytes
        + TAKE_BYTES_MAX
        + warm_bytes
        + 2 * WORKERS * BATCH_BYTES
    )


def _rows(items: int, what: str, limit_name: str, found: _Figures) -> list[Row]:
    return [
        Row(
            "c",
            f"{what}: {items:,} into cold",
            "items/s",
            Samples.of(found.stored),
            goal=Goal(value_min=STORE_GOAL),
        ),
        Row(
            "c",
            f"{what}: and out again",
            "items/s",
            Samples.of(found.drained),
            limit_name,
            Samples.of(found.warm),
            goal=Goal(ratio_min=DRAIN_GOAL),
        ),
        Row(
            "c",
            f"{what}: largest RSS throughout",
            "MiB",
            Samples.of(found.rss),
            "empty, and what the settings allow",
            Samples.of(found.bound),
            goal=Goal(ratio_max=1.0),
        ),
    ]


def _http(url: str) -> dict[str, Any]:
    handler = {"type": "http", "url": url, "batch_bytes": BATCH_BYTES}
    return {"handler": handler, "workers": {"count": WORKERS}}


def _resume(queue: str, client: Client) -> None:
    Control(client.control).resume(queue)


def _under(at: Places, name: str) -> Places:
    """Directories for one of several daemons."""
    found = Places(at.state / name, at.sockets / name)
    found.state.mkdir()
    found.sockets.mkdir()
    return found
