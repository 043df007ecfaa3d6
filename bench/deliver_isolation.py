"""d. Two queues, one of which hangs: what the other loses.

The hanging queue has a backlog that fills its warm tier and lies in cold for the rest, and every
one of its workers waits for an answer that never comes. Beside it a daemon without such a queue,
in turns. The second row pushes to the hanging queue as well, a run of every ten, so that its
overflow is being stored meanwhile: that is work, and takes its part of the machine.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Final

from bench.daemon_process import DRAINED, Daemon, places, spare_chunks_for
from bench.deliver_books import Books, deliver, fill, read_books, troubles_told, wait_for
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.producers import Work, push_for, run_maker, warm_up
from forebay import Client

HANGING: Final = "hanging"
BACKLOG: Final = 100_000
SHARE_GOAL: Final = 0.9
EVERY: Final = 10
"""A run of so many goes to the hanging queue."""
WORKERS: Final = 4

NULL: Final = {"handler": {"type": "null"}}
STUCK: Final = {
    # A day: a timeout would end it.
    "handler": {"type": "python", "function": "bench.deliver_hang:never", "timeout": "1d"},
    "workers": {"count": WORKERS},
}


def isolation(plan: Plan) -> list[Row]:
    alone: list[float] = []
    beside: list[float] = []
    fed: list[float] = []
    spool = {"spare_chunks": spare_chunks_for(plan.seconds), "max_bytes": "64Gi"}
    with ExitStack() as stack:
        at = [stack.enter_context(places(f"deliver-d{number}")) for number in range(2)]
        free = stack.enter_context(Daemon(at[0], spool, {DRAINED: NULL}))
        stack.enter_context(troubles_told(free))
        stuck = stack.enter_context(Daemon(at[1], spool, {DRAINED: NULL, HANGING: STUCK}))
        stack.enter_context(troubles_told(stuck))
        with stuck.connect() as client:
            fill(client, HANGING, BACKLOG)
            wait_for(client, HANGING, _is_stuck)
        for number in plan.each_round("d: isolation"):
            turns: list[tuple[list[float], Daemon, bool]] = [
                (alone, free, False),
                (beside, stuck, False),
                (fed, stuck, True),
            ]
            # The first contender finds the machine as the others left it.
            for rates, daemon, feeds_both in turns if number % 2 else reversed(turns):
                rates.append(_rate(daemon, plan.seconds, feeds_both=feeds_both))
        with stuck.connect() as client:
            if read_books(client, HANGING)["delivered"]:
                raise RuntimeError("the hanging queue delivered something")
    limit = "without the hanging queue", Samples.of(alone)
    return [
        Row(
            "d",
            "null queue beside one that hangs",
            "items/s",
            Samples.of(beside),
            *limit,
            goal=Goal(ratio_min=SHARE_GOAL),
        ),
        Row("d", "the same, and 1 run of 10 goes there", "items/s", Samples.of(fed), *limit),
    ]


def _is_stuck(books: Books) -> bool:
    return not books["spooled"] and books["cold"] > 0 and books["running"] > 0


def _rate(daemon: Daemon, seconds: float, *, feeds_both: bool) -> float:
    make_run = run_maker(Work.SNAPPY, DRAINED)
    with daemon.connect() as client:
        warm_up(client, make_run)
    daemon.wait_until_quiet()
    if feeds_both:
        make_run = _in_turns(make_run, run_maker(Work.SNAPPY, HANGING))
    return deliver(daemon, DRAINED, partial(_push, make_run, seconds)).items_per_s


def _push(make_run: Callable[[], bytes], seconds: float, client: Client) -> None:
    push_for(client, make_run, seconds)


def _in_turns(most: Callable[[], bytes], some: Callable[[], bytes]) -> Callable[[], bytes]:
    numbers = count(1)
    return lambda: some() if next(numbers) % EVERY == 0 else most()
