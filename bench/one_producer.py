"""c. One producer process, runs of 1,000, 8 in flight: against a bare server, and against Redis.

The ceiling is the same bytes, made before, through a bare socket server with grouped syncs. Beside
it the same server with a producer that encodes as forebay's does: what is lost between the two is
the producer's work, not the daemon's.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bench.bare_client import BareClient
from bench.bare_server import bare_server
from bench.daemon_process import DRAINED, HOLDING, Daemon, Places, places, spare_chunks_for
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.producers import RUN_ITEMS, Pushed, Work, push_for, push_items_for, run_maker, warm_up
from bench.redis_peer import BATCHES, redis_list
from bench.sync_trace import SyncTrace

REDIS_GOAL: Final = 2.0
CEILING_GOAL: Final = 0.5
Measure = Callable[[], tuple[Pushed, float]]
"""What was pushed, and fdatasyncs for 1,000 items."""


class _Contender:
    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._rates: list[float] = []
        self._syncs: list[float] = []

    def take_turn(self) -> None:
        pushed, syncs = self._measure()
        self._rates.append(pushed.items_per_s)
        self._syncs.append(syncs)

    @property
    def rate(self) -> Samples:
        return Samples.of(self._rates)

    @property
    def syncs_per_1000(self) -> float:
        return Samples.of(self._syncs).median


def one_producer(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        at = [stack.enter_context(places(f"c{number}")) for number in range(3)]
        squeezing = stack.enter_context(_daemon(at[0], "snappy", plan))
        storing = stack.enter_context(_daemon(at[1], "none", plan))
        redis = stack.enter_context(redis_list(at[2]))
        bare_socket = at[2].sockets / "bare.sock"
        bare_trace = stack.enter_context(
            bare_server(bare_socket, at[2].state / "bare", is_grouped=True)
        )
        squeezing.wait_until_quiet()
        storing.wait_until_quiet()

        ours, bares = {}, {}
        for work in Work:
            daemon = squeezing if work.is_compressed else storing
            ours[work] = _Contender(partial(_push, daemon, HOLDING, work, plan.seconds))
            bares[work] = _Contender(
                partial(_push_bare, bare_socket, bare_trace, work, plan.seconds)
            )
        drained = {
            work: _Contender(partial(_push, squeezing, DRAINED, work, plan.seconds))
            for work in (Work.SNAPPY, Work.READY)
        }
        by_items = _Contender(partial(_push_items, squeezing, plan.seconds))
        peers = {
            batch: _Contender(partial(redis.push_for, plan.seconds, batch)) for batch in BATCHES
        }

        pairs = [contender for work in Work for contender in (ours[work], bares[work])]
        for _ in plan.each_round("c: one producer"):
            for contender in (*pairs, *drained.values(), by_items, *peers.values()):
                contender.take_turn()

    best, peer = max(peers.items(), key=lambda entry: entry[1].rate.median)
    peer_name = f"Redis list, AOF always, RPUSH × {best:,}"
    ceiling_name = "ceiling: bare server"
    rows = []
    for work, contender in ours.items():
        what = f"1 producer, {work}"
        rows.append(_row(what, contender, ceiling_name, bares[work.ready_made], CEILING_GOAL))
        if work is not work.ready_made:
            rows.append(_row(what, contender, "bare server, same work", bares[work]))
            rows.append(_row(what, contender, peer_name, peer, REDIS_GOAL))
            if best != RUN_ITEMS:
                same_name = f"the same, RPUSH × {RUN_ITEMS:,}"
                rows.append(_row(what, contender, same_name, peers[RUN_ITEMS]))
    for work, contender in drained.items():
        what = f"1 producer, {work}, drained meanwhile"
        rows.append(_row(what, contender, ceiling_name, bares[work.ready_made]))
        rows.append(_row(what, contender, peer_name, peer))
    rows.append(_row("1 producer, single items into Client.push", by_items, peer_name, peer))
    return rows


def _row(
    what: str,
    ours: _Contender,
    limit_name: str,
    limit: _Contender,
    ratio_goal: float | None = None,
) -> Row:
    return Row(
        "c",
        what,
        "items/s",
        ours.rate,
        limit_name,
        limit.rate,
        goal=None if ratio_goal is None else Goal(ratio_min=ratio_goal),
        syncs_per_1000=ours.syncs_per_1000,
        limit_syncs_per_1000=limit.syncs_per_1000,
    )


def _daemon(at: Places, compression: str, plan: Plan) -> Daemon:
    """`compression` is what the daemon does to runs that come uncompressed."""
    spool = {
        "spare_chunks": spare_chunks_for(plan.seconds),
        "max_bytes": "64Gi",
        "compression": compression,
    }
    return Daemon(at, spool, is_traced=True)


def _push(daemon: Daemon, queue: str, work: Work, seconds: float) -> tuple[Pushed, float]:
    assert daemon.trace is not None
    make_run = run_maker(work, queue)
    with daemon.connect() as client:
        warm_up(client, make_run)
        mark = daemon.trace.mark()
        pushed = push_for(client, make_run, seconds)
        syncs = daemon.trace.since(mark)
    daemon.wait_until_quiet()
    return pushed, syncs.count / pushed.items * 1000


def _push_items(daemon: Daemon, seconds: float) -> tuple[Pushed, float]:
    assert daemon.trace is not None
    with daemon.connect() as client:
        mark = daemon.trace.mark()
        pushed = push_items_for(client, HOLDING, seconds)
        syncs = daemon.trace.since(mark)
    daemon.wait_until_quiet()
    return pushed, syncs.count / pushed.items * 1000


def _push_bare(path: Path, trace: SyncTrace, work: Work, seconds: float) -> tuple[Pushed, float]:
    make_run = run_maker(work, HOLDING)
    with BareClient(path) as client:
        warm_up(client, make_run)
        mark = trace.mark()
        pushed = push_for(client, make_run, seconds)
        syncs = trace.since(mark)
    return pushed, syncs.count / pushed.items * 1000
