"""a. From push to settled: one producer process, a null handler, and Redis beside it.

A push is durable, routed, leased, discarded and settled. The benchmark counts the items that the
books call delivered once nothing is held any more: with warm's default limit, which a producer at
full speed reaches, and with one that it does not reach.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.daemon_process import DRAINED, Daemon, Places, places, spare_chunks_for
from bench.deliver_books import Delivered, deliver, troubles_told
from bench.deliver_redis import redis_end_to_end
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.producers import RUN_ITEMS, WINDOW, Work, push_for, run_maker, warm_up
from bench.redis_peer import BATCHES, RedisList, redis_list
from forebay import Client

ITEMS_GOAL: Final = 250_000
CPU_GOAL_US: Final = 3.0
SINGLE_WINDOW: Final = 256
"""Runs of one item in flight: with 8 the disk's latency would be measured, not the daemon."""

ROOMY: Final = "roomy"
"""Drained as well, with more room in warm than a round can fill."""
QUEUES: Final = {
    DRAINED: {"handler": {"type": "null"}},
    ROOMY: {
        "handler": {"type": "null"},
        "warm_max_items": 1_000_000,
        "warm_max_bytes": "1Gi",
    },
}


class Contender:
    def __init__(self, measure: Callable[[], tuple[Delivered, float | None]]) -> None:
        """`measure` also tells fdatasyncs for 1,000 items, where they are counted."""
        self._measure = measure
        self._delivered: list[Delivered] = []
        self._syncs: list[float] = []

    def take_turn(self) -> None:
        delivered, syncs = self._measure()
        self._delivered.append(delivered)
        if syncs is not None:
            self._syncs.append(syncs)

    @property
    def rate(self) -> Samples:
        return Samples.of([one.items_per_s for one in self._delivered])

    @property
    def cpu_us(self) -> Samples:
        return Samples.of([one.cpu_us_per_item for one in self._delivered])

    @property
    def syncs_per_1000(self) -> float | None:
        return Samples.of(self._syncs).median if self._syncs else None


def end_to_end(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        at = [stack.enter_context(places(f"deliver-a{number}")) for number in range(3)]
        squeezing = _daemon(stack, at[0], "snappy", plan)
        storing = _daemon(stack, at[1], "none", plan)
        redis = stack.enter_context(redis_list(at[2]))

        ours = {}
        for work in Work:
            daemon = squeezing if work.is_compressed else storing
            ours[work, DRAINED] = _contender(daemon, DRAINED, work, plan)
            if work.is_compressed:
                ours[work, ROOMY] = _contender(daemon, ROOMY, work, plan)
        singles = _contender(squeezing, DRAINED, Work.READY, plan, 1, SINGLE_WINDOW)
        peers = {
            batch: Contender(partial(_measure_redis, redis, plan.seconds, batch))
            for batch in BATCHES
        }
        for _ in plan.each_round("a: end to end"):
            # The peers in the middle: next to what has a goal.
            first, *others = ours.values()
            for contender in (first, *peers.values(), *others, singles):
                contender.take_turn()

    best, peer = max(peers.items(), key=lambda entry: entry[1].rate.median)
    peer_name = f"Redis list, AOF always, script and LTRIM × {best:,}"
    rows = []
    for (work, queue), contender in ours.items():
        room = ", 1,000,000 in warm" if queue == ROOMY else ""
        has_goal = work is Work.SNAPPY
        rows += [
            Row(
                "a",
                f"push to settled, {work}{room}",
                "items/s",
                contender.rate,
                peer_name,
                peer.rate,
                goal=Goal(value_min=ITEMS_GOAL) if has_goal else None,
                syncs_per_1000=contender.syncs_per_1000,
            ),
            Row(
                "a",
                f"the daemon's processor time for an item, {work}{room}",
                "µs",
                contender.cpu_us,
                "valkey-server's, its consumer's not counted",
                peer.cpu_us,
                goal=Goal(value_max=CPU_GOAL_US) if has_goal else None,
            ),
        ]
    what = f"runs of one item, {Work.READY}, {SINGLE_WINDOW} in flight"
    syncs = singles.syncs_per_1000
    rows.append(Row("a", what, "items/s", singles.rate, syncs_per_1000=syncs))
    rows.append(Row("a", "the daemon's processor time for a run of one", "µs", singles.cpu_us))
    return rows


def _daemon(stack: ExitStack, at: Places, compression: str, plan: Plan) -> Daemon:
    """`compression` is what the daemon does to runs that come uncompressed."""
    spool = {
        "spare_chunks": spare_chunks_for(plan.seconds),
        "max_bytes": "64Gi",
        "compression": compression,
    }
    daemon = stack.enter_context(Daemon(at, spool, QUEUES, is_traced=True))
    daemon.wait_until_quiet()
    return stack.enter_context(troubles_told(daemon))


def _contender(
    daemon: Daemon,
    queue: str,
    work: Work,
    plan: Plan,
    run_items: int = RUN_ITEMS,
    window: int = WINDOW,
) -> Contender:
    make_run = run_maker(work, queue, run_items)
    return Contender(partial(_measure, daemon, queue, make_run, plan.seconds, window))


def _measure(
    daemon: Daemon, queue: str, make_run: Callable[[], bytes], seconds: float, window: int
) -> tuple[Delivered, float | None]:
    assert daemon.trace is not None
    deliver(daemon, queue, lambda client: warm_up(client, make_run, window))
    daemon.wait_until_quiet()
    mark = daemon.trace.mark()

    def push(client: Client) -> None:
        push_for(client, make_run, seconds, window)

    delivered = deliver(daemon, queue, push)
    syncs = daemon.trace.since(mark).count / delivered.items * 1000
    return delivered, syncs


def _measure_redis(peer: RedisList, seconds: float, batch: int) -> tuple[Delivered, None]:
    return redis_end_to_end(peer, seconds, batch), None
