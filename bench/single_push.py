"""b. One item, one producer: how long until it is durable, against pwrite and fdatasync alone."""

import time
from collections.abc import Callable
from typing import Final

from bench.bare_client import BareClient
from bench.bare_server import bare_server
from bench.daemon_process import HOLDING, Daemon, places
from bench.disk import WrittenFile
from bench.figures import Goal, Row, Samples, percentile
from bench.items import crm_items
from bench.plan import Plan
from forebay.run import encode_run

BLOCK: Final = 10
"""Pushes of one contender before the next one has its turn."""
RATIO_GOAL: Final = 1.5
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99}


def single_push(plan: Plan) -> list[Row]:
    item = crm_items(1)[0]
    run = encode_run([item], queue=HOLDING)
    with (
        places("b") as at,
        Daemon(at, is_traced=True) as daemon,
        WrittenFile(at.state / "written") as file,
        bare_server(at.sockets / "bare.sock", at.state / "bare", is_grouped=False),
        BareClient(at.sockets / "bare.sock") as bare,
        daemon.connect() as client,
    ):
        assert daemon.trace is not None
        daemon.wait_until_quiet()
        mark = daemon.trace.mark()
        client.push(HOLDING, [item])
        block = bytes(daemon.trace.since(mark).group_bytes[0])

        def push_bare() -> None:
            bare.submit(run, window=1)
            bare.drain()

        contenders: dict[str, Callable[[], object]] = {
            "raw": lambda: file.write([block]),
            "bare": push_bare,
            "forebay": lambda: client.push(HOLDING, [item]),
        }
        micros: dict[str, list[list[float]]] = {name: [] for name in contenders}
        for _ in plan.each_round("b: one item"):
            for times in micros.values():
                times.append([])
            ends = time.perf_counter() + plan.seconds * len(contenders)
            while time.perf_counter() < ends:
                for name, push in contenders.items():
                    micros[name][-1] += _time(push, BLOCK)
    return [
        _row(name, micros["forebay"], limit_name, micros[limit], goal)
        for limit, limit_name, goal in (
            ("raw", "pwrite + fdatasync", RATIO_GOAL),
            ("bare", "bare socket + pwrite + fdatasync", None),
        )
        for name in PERCENTILES
    ]


def _row(
    name: str,
    ours: list[list[float]],
    limit_name: str,
    limit: list[list[float]],
    ratio_goal: float | None,
) -> Row:
    share = PERCENTILES[name]
    is_goal = name == "p50" and ratio_goal is not None
    return Row(
        "b",
        f"one item, {name}",
        "µs",
        Samples.of([percentile(sorted(times), share) for times in ours]),
        limit_name,
        Samples.of([percentile(sorted(times), share) for times in limit]),
        goal=Goal(ratio_max=ratio_goal) if is_goal else None,
        syncs_per_1000=1000,
        limit_syncs_per_1000=1000,
    )


def _time(push: Callable[[], object], count: int) -> list[float]:
    """Microseconds of each call."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        push()
        times.append((time.perf_counter() - started) * 1e6)
    return times
