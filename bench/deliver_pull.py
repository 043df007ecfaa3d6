"""e. Consumers that pull: what it costs that they are answered when their reports are on disk.

A backlog waits in warm; consumers lease so many items at a time and acknowledge them. Beside it the
same on a queue with `settle_durability: lazy`, in turns.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

from bench.daemon_process import Daemon, places, spare_chunks_for
from bench.deliver_books import Delivered, deliver, is_routed, troubles_told, wait_for
from bench.figures import Row, Samples
from bench.plan import Plan
from bench.producers import RUN_ITEMS, Work, run_maker
from forebay import Client

SYNCED: Final = "synced"
LAZY: Final = "lazy"
WINDOW: Final = 256

PULLED: Final = {
    "handler": {"type": "pull"},
    "warm_max_items": 1_000_000,
    "warm_max_bytes": "1Gi",
    "lease_time": "1h",
}
QUEUES: Final = {
    SYNCED: PULLED | {"settle_durability": "fsync"},
    LAZY: PULLED | {"settle_durability": "lazy"},
}


class Load(NamedTuple):
    lease_items: int
    consumers: int
    run_items: int
    items: int
    """All consumers together, for each second of the plan."""

    def __str__(self) -> str:
        who = "a consumer" if self.consumers == 1 else f"{self.consumers} consumers"
        items = "items" if self.lease_items > 1 else "item"
        return f"{who}, leases of {self.lease_items} {items}"


LOADS: Final = (
    Load(500, 1, RUN_ITEMS, 60_000),
    Load(100, 1, RUN_ITEMS, 20_000),
    Load(1, 1, 1, 500),
    Load(1, 16, 1, 2_000),
)


def consumers(plan: Plan) -> list[Row]:
    found: dict[tuple[Load, str], list[Delivered]] = {
        (load, queue): [] for load in LOADS for queue in QUEUES
    }
    syncs: dict[tuple[Load, str], list[float]] = {key: [] for key in found}
    spool = {"spare_chunks": spare_chunks_for(plan.seconds), "max_bytes": "64Gi"}
    with ExitStack() as stack:
        at = stack.enter_context(places("deliver-e"))
        daemon = stack.enter_context(Daemon(at, spool, QUEUES, is_traced=True))
        stack.enter_context(troubles_told(daemon))
        daemon.wait_until_quiet()
        assert daemon.trace is not None
        for number in plan.each_round("e: consumers"):
            # The first contender finds the machine as the others left it.
            for load, queue in found if number % 2 else reversed(found):
                items = _fill(daemon, queue, load, plan.seconds)
                mark = daemon.trace.mark()
                delivered = deliver(daemon, queue, partial(_consume, daemon, queue, load, items))
                found[load, queue].append(delivered)
                syncs[load, queue].append(daemon.trace.since(mark).count / items * 1000)
    rows = []
    for load in LOADS:
        ours, lazy = found[load, SYNCED], found[load, LAZY]
        rows += [
            Row(
                "e",
                str(load),
                "items/s" if load.lease_items > 1 else "acks/s",
                Samples.of([one.items_per_s for one in ours]),
                "settle_durability: lazy",
                Samples.of([one.items_per_s for one in lazy]),
                syncs_per_1000=Samples.of(syncs[load, SYNCED]).median,
                limit_syncs_per_1000=Samples.of(syncs[load, LAZY]).median,
            ),
            Row(
                "e",
                f"{load}: the daemon's processor time for an item",
                "µs",
                Samples.of([one.cpu_us_per_item for one in ours]),
                "settle_durability: lazy",
                Samples.of([one.cpu_us_per_item for one in lazy]),
            ),
        ]
    return rows


def _fill(daemon: Daemon, queue: str, load: Load, seconds: float) -> int:
    """Pushes what will be consumed; how many items."""
    runs = max(load.consumers, round(load.items * seconds) // load.run_items)
    make_run = run_maker(Work.READY, queue, load.run_items)
    with daemon.connect() as client:
        for _ in repeat(None, runs):
            client.submit(make_run(), window=WINDOW)
        client.drain()
        wait_for(client, queue, is_routed)
    daemon.wait_until_quiet()
    return runs * load.run_items


def _consume(daemon: Daemon, queue: str, load: Load, items: int, _: Client) -> None:
    """All consumers at once, until nothing is left."""

    def consume(left: int) -> None:
        with daemon.connect() as client:
            while left > 0:
                with client.lease(queue, min(left, load.lease_items), wait_s=60) as lease:
                    left -= len(lease)

    share, rest = divmod(items, load.consumers)
    with ThreadPoolExecutor(load.consumers) as pool:
        list(pool.map(consume, [share + (n < rest) for n in range(load.consumers)]))
