"""`make bench-observe`: what it costs to watch a daemon that has a lot to show.

The daemon has 500 queues of 4 flows and 5 million items in its tiers, nearly all of them cold, and
a producer pushes 100,000 items per second into one more queue that discards them. /metrics
and /api/v2/metrics/queues/detailed are asked for in turn, every 250 ms: a snapshot is a second old
at most, so that every fourth answer is made anew, and the slowest hundredth surely is. Rounds with
and without observers take turns. docs/benchmarks.md says what the columns mean.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from bench.command import measure
from bench.daemon_process import DRAINED, Daemon, places, spare_chunks_for
from bench.figures import Goal, Row, Samples, percentile
from bench.plan import Plan
from bench.producers import RUN_ITEMS, WINDOW, Work, run_maker, warm_up
from forebay import connect
from forebay.run import encode_run

QUEUES: Final = 500
FLOWS: Final = 4
ITEMS: Final = 5_000_000
RUNS_A_FLOW: Final = 2
PACE: Final = 100_000
EVERY_S: Final = 0.25
ANSWER_MS_MAX: Final = 100.0
CPU_MS_MAX: Final = 15.0
REST_S: Final = 5.0
RATE_MIN: Final = 0.95
TIMEOUT_S: Final = 120.0
SETTLE_S: Final = 600.0
PATHS: Final = ("/metrics", "/api/v2/metrics/queues/detailed")


def observed(plan: Plan) -> list[Row]:
    rates: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    most: dict[bool, list[float]] = {True: [], False: []}
    answers: dict[str, list[list[float]]] = {path: [] for path in PATHS}
    queues: dict[str, Any] = {name: {"warm_max_items": 100} for name in _names(plan)}
    queues[DRAINED] = {"handler": {"type": "null"}}
    spool = {"max_bytes": "64Gi", "spare_chunks": spare_chunks_for(plan.seconds)}
    with (
        places("observe") as at,
        Daemon(at, spool, queues, http_listen="127.0.0.1:0") as daemon,
    ):
        _fill(daemon, plan)
        daemon.wait_until_quiet()
        at_rest = _cpu_at_rest(daemon, plan)
        for path in PATHS:
            # The first of a daemon's life takes 40 ms more.
            httpx.get(daemon.http_address + path, trust_env=False, timeout=30).raise_for_status()
        for number in plan.each_round("observe"):
            for is_watched in (True, False) if number % 2 else (False, True):
                # What the round before has left to do is not this one's.
                daemon.wait_until_quiet()
                before_ms = _cpu_ms(daemon)
                rate, took = _round(daemon, plan.seconds, PACE, is_watched=is_watched)
                cpu[is_watched].append(_cpu_ms(daemon) - before_ms)
                rates[is_watched].append(rate)
                for path, times in took.items():
                    answers[path].append(times)
                rate, _ = _round(daemon, plan.seconds, None, is_watched=is_watched)
                most[is_watched].append(rate)
    rows = []
    for path in PATHS:
        for share, goal in ((0.5, None), (0.99, Goal(value_max=ANSWER_MS_MAX))):
            values = Samples.of([percentile(sorted(times), share) for times in answers[path]])
            rows.append(Row("o", f"{path} p{share * 100:.0f}", "ms", values, goal=goal))
    asked = [sum(len(answers[path][at]) for path in PATHS) for at in range(plan.rounds)]
    pairs = zip(cpu[True], cpu[False], asked, strict=True)
    each = Samples.of([(watched - alone) / times for watched, alone, times in pairs])
    goal = Goal(value_max=CPU_MS_MAX)
    rows.append(Row("o", "processor time for an answer", "ms", each, goal=goal))
    rows.append(Row("o", "processor time of 5 s at rest", "ms", at_rest))
    limit = "unobserved"
    paced, free = Samples.of(rates[False]), Samples.of(most[False])
    goal = Goal(ratio_min=RATE_MIN)
    rows.append(
        Row("o", f"push at {PACE:,}/s", "items/s", Samples.of(rates[True]), limit, paced, goal)
    )
    rows.append(
        Row("o", "push, as fast as it goes", "items/s", Samples.of(most[True]), limit, free)
    )
    return rows


def _names(plan: Plan) -> list[str]:
    return [f"queue-{number:03d}" for number in range(QUEUES // 10 if plan.is_quick else QUEUES)]


def _fill(daemon: Daemon, plan: Plan) -> None:
    """Pushes the backlog, tiny items in big runs, and waits until it is in the tiers."""
    names = _names(plan)
    items = ITEMS // (QUEUES * FLOWS * RUNS_A_FLOW)
    payloads = [b"%08d" % number for number in range(items)]
    with daemon.connect(TIMEOUT_S) as client:
        for _ in range(RUNS_A_FLOW):
            for name in names:
                for flow in range(FLOWS):
                    run = encode_run(payloads, queue=name, flow=f"flow-{flow}", action="load")
                    client.submit(run, window=WINDOW)
        client.drain()
        deadline = time.monotonic() + SETTLE_S
        while client.stats()["daemon"]["spooled"]:
            if time.monotonic() > deadline:
                raise RuntimeError("the backlog did not reach the tiers")
            time.sleep(1)


def _cpu_at_rest(daemon: Daemon, plan: Plan) -> Samples:
    """What standing queues cost while no item and no request comes, in ms per 5 s."""
    found: list[float] = []
    for _ in range(plan.rounds):
        before_ms = _cpu_ms(daemon)
        time.sleep(REST_S)
        found.append(_cpu_ms(daemon) - before_ms)
    return Samples.of(found)


def _cpu_ms(daemon: Daemon) -> float:
    """Of all threads of the daemon, those that have ended too: utime + stime."""
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _round(
    daemon: Daemon, seconds: float, pace: int | None, *, is_watched: bool
) -> tuple[float, dict[str, list[float]]]:
    """Items a second that a producer got rid of, and how long answers took meanwhile, in ms."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=_produce, args=(daemon.socket, seconds, pace, there), daemon=True
    )
    process.start()
    # Lets go of this end, so that a producer that dies is heard.
    there.close()
    here.recv()
    took: dict[str, list[float]] = {path: [] for path in PATHS} if is_watched else {}
    if is_watched:
        with httpx.Client(base_url=daemon.http_address, trust_env=False, timeout=30) as http:
            _watch(http, took, lambda: bool(here.poll()))
    rate = float(here.recv())
    process.join()
    return rate, took


def _watch(http: httpx.Client, took: dict[str, list[float]], is_over: Callable[[], bool]) -> None:
    next_at = time.monotonic()
    while not is_over():
        for path in PATHS:
            next_at += EVERY_S
            began = time.perf_counter()
            http.get(path).raise_for_status()
            took[path].append((time.perf_counter() - began) * 1000)
            time.sleep(max(0.0, next_at - time.monotonic()))


def _produce(socket: Path, seconds: float, pace: int | None, to: "Connection[Any, Any]") -> None:
    make_run = run_maker(Work.READY, DRAINED)
    with connect(socket, TIMEOUT_S) as client:
        warm_up(client, make_run)
        to.send("ready")
        runs = 0
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            if pace is not None:
                time.sleep(max(0.0, runs * RUN_ITEMS / pace - (now - began)))
            client.submit(make_run(), window=WINDOW)
            runs += 1
        client.drain()
        to.send(runs * RUN_ITEMS / (time.perf_counter() - began))


def main(
    seconds: Annotated[float, typer.Option(min=1, help="With and without observers, each.")] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of which the medians are shown.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="50 queues, to see that it works.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="All rounds as JSON instead of a table.")
    ] = False,
) -> None:
    """Measure what watching costs."""
    plan = Plan(seconds, rounds, is_quick=quick)
    measure("Being observed", {"o": observed}, None, plan, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
