"""What waits costs nothing: a tick of the promoter with 10,000 to a million items waiting.

The items are scheduled over a day, each a run of its own, which is the dearest kind. Beside them
100 are due at every tick. A tick is what the promoter does each time (actors/tiers/promoter.py): it
asks for the totals, acquires what is due, enters it into warm, and asks when something will be due
next. What was promoted is then settled, which is measured apart. The clock of promoter and store is
the benchmark's own, and stands still but for the 5 s between two ticks.

The stores of all sizes are filled first; then the ticks take turns, so that each has the same
machine, and the ratio is taken between neighbours. SQLite and PostgreSQL write with fsync. CPU is
this process' own: of SQLite all of it, of PostgreSQL the daemon's side.

    .venv/bin/python -m bench.schedules [--stores sqlite postgres] [--sizes 10000 100000 1000000]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from actors.model.slices import InCold
from actors.ports.tiers import ColdQueue, Ending, NewRow, Outlook, RowOutcome
from actors.tiers.warm import MemoryWarm
from bench.items import crm_items
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from daemon.stores.sqlite.store import SqliteCold
from forebay.ids import new_run_id
from forebay.run import encode_run, read_head
from tests.rig.tiers_alone import make_tiers
from tests.servers.postgres import PostgresServer, postgres_server

QUEUE: Final = "later"
SIZES: Final = (10_000, 100_000, 1_000_000)
DUE: Final = 100
TICKS: Final = 30
TICK_MS: Final = 5000
START_MS: Final = 1_700_000_000_000
FIRST_MS: Final = START_MS + 3_600_000
DAY_MS: Final = 86_400_000
STRIDE: Final = 0.6180339887
"""Times are spread evenly, and come in no order."""
AT_ONCE: Final = 2000
TIMEOUT_S: Final = 300.0
LEASE_S: Final = 3600.0
RATIO_MAX: Final = 1.5
MANY: Final = 10**9

Cold = SqliteCold | PostgresCold


class Cost(NamedTuple):
    """Of one tick, in ms."""

    promote: float
    cpu: float
    settle: float


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Watched:
    """A store that says when the promoter has looked for what is due next."""

    def __init__(self, cold: Cold) -> None:
        self._cold = cold
        self.looked = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cold, name)

    async def outlook(self, queue: str, except_flows: frozenset[str] = frozenset()) -> Outlook:
        found = await self._cold.outlook(queue, except_flows)
        self.looked.set()
        return found

    @property
    def port(self) -> ColdQueue:
        port: Any = self
        found: ColdQueue = port
        return found


@dataclass(eq=False)
class Rig:
    """A store of one size, with a promoter before it."""

    store: str
    size: int
    cold: Cold
    clock: Clock
    costs: list[Cost] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watched = Watched(self.cold)
        self.warm = MemoryWarm(None, self.clock)
        tiers = make_tiers(self.warm, self.watched.port, self.clock, acquire_s=LEASE_S)
        self.promoter = tiers.promoter

    async def fill(self) -> None:
        payloads = crm_items(1000)
        rows: list[NewRow] = []
        for number, due_ms in enumerate(moments(self.size)):
            rows.append(make_row(payloads[number % len(payloads)], due_ms))
            if len(rows) == AT_ONCE:
                await self._put(rows)
                rows = []
        await self._put(rows)

    async def _put(self, rows: Sequence[NewRow]) -> None:
        await self.cold.store(rows)
        await self.cold.confirm([row.row for row in rows])

    async def tick(self) -> Cost:
        """As of actors/tiers/promoter.py: what it does every 5 s, until nothing is due any more."""
        self.watched.looked = looked = trio.Event()
        began, cpu = time.perf_counter(), time.process_time()
        await self.watched.totals()
        self.promoter.wake(QUEUE)
        await looked.wait()
        while (await self.warm.fill(QUEUE)).items < DUE:
            await trio.lowlevel.checkpoint()
        promoted, cpu = time.perf_counter(), time.process_time() - cpu
        await self._settle()
        settled = time.perf_counter()
        return Cost((promoted - began) * 1000, cpu * 1000, (settled - promoted) * 1000)

    async def _settle(self) -> None:
        leased = await self.warm.lease(QUEUE, MANY, MANY, LEASE_S)
        await self.warm.end(QUEUE, [Ending(one.token) for one in leased])
        outcomes: list[RowOutcome] = []
        for one in leased:
            owner = one.slice.run.owner
            assert isinstance(owner, InCold)
            outcomes.append(RowOutcome(owner.row, owner.lock, one.slice.bits))
        assert len(outcomes) == DUE, f"{len(outcomes)} came due"
        assert all(await self.cold.settle(outcomes))


def moments(size: int) -> Iterator[int]:
    """When each item is due: `DUE` of them at every tick, the others over the day."""
    for tick in range(1, TICKS + 1):
        yield from [START_MS + tick * TICK_MS] * DUE
    for number in range(size - TICKS * DUE):
        yield FIRST_MS + int(number * STRIDE % 1 * DAY_MS)


def make_row(payload: bytes, due_ms: int) -> NewRow:
    data = encode_run([payload], queue=QUEUE, due_ms=due_ms, enqueued_ms=START_MS)
    return NewRow(new_run_id(), read_head(data), data, 1, due_ms=due_ms)


async def measure(rigs: Sequence[Rig], console: Console) -> None:
    for rig in rigs:
        began = time.perf_counter()
        await rig.fill()
        took = time.perf_counter() - began
        console.print(f"{rig.store}: {rig.size:,} items scheduled in {took:.0f} s")
    async with trio.open_nursery() as nursery:
        for rig in rigs:
            nursery.start_soon(rig.promoter.promote, QUEUE)
            await rig.watched.looked.wait()
        for _ in range(TICKS):
            for rig in rigs:
                rig.clock.now_ms += TICK_MS
                rig.costs.append(await rig.tick())
        nursery.cancel_scope.cancel()


async def run(
    stores: Sequence[str], sizes: Sequence[int], directory: Path, console: Console
) -> list[list[Rig]]:
    groups: list[list[Rig]] = []
    for store in stores:
        async with AsyncExitStack() as stack:
            server = stack.enter_context(postgres_server(is_durable=True))
            bridge = await stack.enter_async_context(Bridge())
            rigs: list[Rig] = []
            for size in sizes:
                clock = Clock()
                cold = open_store(store, size, clock, directory, server, bridge)
                await cold.open()
                stack.push_async_callback(cold.close)
                rigs.append(Rig(store, size, cold, clock))
            await measure(rigs, console)
            groups.append(rigs)
    return groups


def open_store(
    store: str, size: int, clock: Clock, directory: Path, server: PostgresServer, bridge: Bridge
) -> Cold:
    if store == "sqlite":
        return SqliteCold(directory / f"{size}.sqlite", TIMEOUT_S, clock)
    daemon = b"the bench's own."
    where = PostgresSettings(server.url(), TIMEOUT_S, schema=f"waiting_{size}")
    return PostgresCold(where, daemon, bridge, now_ms=clock)


def show(groups: Sequence[Sequence[Rig]], console: Console) -> bool:
    """Prints the table; whether the goal is met everywhere."""
    title = f"a tick of the promoter with {DUE} items due, in ms; medians of {TICKS} ticks"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in ("store", "waiting", "promote", "CPU", "settle", "ratio", "of CPU", ""):
        table.add_column(name, justify="left" if name == "store" else "right", no_wrap=True)
    is_met = True
    for rigs in groups:
        least = rigs[0]
        for rig in rigs:
            ratio = ratio_of(rig, least, "promote")
            is_good = ratio <= RATIO_MAX
            is_met = is_met and is_good
            table.add_row(
                rig.store,
                f"{rig.size:,}",
                *(f"{median(rig, name):.1f}" for name in ("promote", "cpu", "settle")),
                f"{ratio:.2f}",
                f"{ratio_of(rig, least, 'cpu'):.2f}",
                "" if rig is least else "[green]met[/]" if is_good else "[bold red]short[/]",
            )
        table.add_section()
    console.print(table)
    console.print(f"goal: at most {RATIO_MAX} of what it costs with the fewest waiting")
    return is_met


def median(rig: Rig, name: str) -> float:
    return statistics.median(getattr(cost, name) for cost in rig.costs)


def ratio_of(rig: Rig, least: Rig, name: str) -> float:
    """Tick by tick: neighbours in time had the same machine."""
    pairs = zip(rig.costs, least.costs, strict=True)
    return statistics.median(getattr(own, name) / getattr(other, name) for own, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stores = ("sqlite", "postgres")
    parser.add_argument("--stores", nargs="+", choices=stores, default=stores)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    chosen = parser.parse_args()
    if min(chosen.sizes) < TICKS * DUE:
        parser.error(f"a size is at least {TICKS * DUE}")
    console = Console()
    Path(".bench").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=".bench") as directory:
        groups = trio.run(run, chosen.stores, sorted(chosen.sizes), Path(directory), console)
    return 0 if show(groups, console) else 1


if __name__ == "__main__":
    sys.exit(main())
