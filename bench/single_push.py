"""b. One item, one producer: how long until it is durable, against pwrite and fdatasync alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from bench.bare_client import BareClient
from bench.bare_server import bare_server
from bench.daemon_process import HOLDING, Daemon, Places, places
from bench.disk import WrittenFile
from bench.figures import Goal, Row, Samples, percentile
from bench.intake_floor import FLOORS, floor_server
from bench.items import crm_items
from bench.plan import Plan
from forebay.run import encode_run

BLOCK: Final = 10
"""Pushes of one contender before the next one has its turn."""
RATIO_GOAL: Final = 1.5
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99}
LIMITS: Final = {"raw": "pwrite + fdatasync", "bare": "bare socket + pwrite + fdatasync"}
FLOOR_LIMITS: Final = {kind: f"bare socket, {kind}" for kind in FLOORS}


def single_push(plan: Plan) -> list[Row]:
    item = crm_items(1)[0]
    run = encode_run([item], queue=HOLDING)
    with (
        ExitStack() as stack,
        places("b") as at,
        Daemon(at, is_traced=True) as daemon,
        WrittenFile(at.state / "written") as file,
        bare_server(at.sockets / "bare.sock", at.state / "bare", is_grouped=False) as bare_trace,
        BareClient(at.sockets / "bare.sock") as bare,
        daemon.connect() as client,
    ):
        assert daemon.trace is not None
        daemon.wait_until_quiet()
        floors = {kind: stack.enter_context(_floor(kind, at)) for kind in FLOORS}
        mark = daemon.trace.mark()
        client.push(HOLDING, [item])
        block = bytes(daemon.trace.since(mark).group_bytes[0])

        def push_to(server: BareClient) -> None:
            server.submit(run, window=1)
            server.drain()

        contenders: dict[str, Callable[[], object]] = {
            "raw": lambda: file.write([block]),
            "bare": partial(push_to, bare),
            "forebay": lambda: client.push(HOLDING, [item]),
        }
        contenders |= {kind: partial(push_to, server) for kind, server in floors.items()}
        micros: dict[str, list[list[float]]] = {name: [] for name in contenders}
        traces = {"forebay": daemon.trace, "bare": bare_trace}
        marks = {name: trace.mark() for name, trace in traces.items()}
        for _ in plan.each_round("b: one item"):
            for times in micros.values():
                times.append([])
            ends = time.perf_counter() + plan.seconds * len(contenders)
            while time.perf_counter() < ends:
                for name, push in contenders.items():
                    micros[name][-1] += _time(push, BLOCK)
        syncs = dict.fromkeys(("raw", *floors), 1000.0)
        for name, trace in traces.items():
            pushes = sum(map(len, micros[name]))
            syncs[name] = trace.since(marks[name]).count / pushes * 1000
    return [
        Row(
            "b",
            f"one item, {name}",
            "µs",
            _percentiles(micros["forebay"], share),
            limit_name,
            _percentiles(micros[limit], share),
            goal=Goal(ratio_max=RATIO_GOAL) if limit == "raw" and name == "p50" else None,
            syncs_per_1000=syncs["forebay"],
            limit_syncs_per_1000=syncs[limit],
        )
        for limit, limit_name in (LIMITS | FLOOR_LIMITS).items()
        for name, share in PERCENTILES.items()
        if limit in LIMITS or name == "p50"
    ]


@contextmanager
def _floor(kind: str, at: Places) -> Iterator[BareClient]:
    name = kind.replace(", ", "-")
    path = at.sockets / f"{name}.sock"
    with floor_server(kind, path, at.state / name), BareClient(path) as client:
        yield client


def _percentiles(rounds: list[list[float]], share: float) -> Samples:
    return Samples.of([percentile(sorted(times), share) for times in rounds])


def _time(push: Callable[[], object], count: int) -> list[float]:
    """Microseconds of each call."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        push()
        times.append((time.perf_counter() - started) * 1e6)
    return times
