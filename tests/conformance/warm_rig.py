"""What a suite of the warm queue needs: one to test, its time, and runs to put into it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypedDict, Unpack

import trio

from actors.model.slices import InCold, InJournal, LentRun, Slice, SortKey, item_bits
from actors.ports.tiers import Fill, Leased, Limits, WarmQueue
from forebay.run import encode_run, read_head

PLENTY = Limits(10**9, 10**12)
LEASE_S = 30.0
START_MS = 1_700_000_000_000
"""When the runs of the suites were enqueued; a rig's time is later."""

EPOCH: Final = b"l" * 16
"""The lock of all rows; a shared queue has it for its epoch."""

View = tuple[SortKey, int, int, int, tuple[str, ...]]


class RunOptions(TypedDict, total=False):
    item_size: int
    flow: str
    priority: int
    enqueued_ms: int
    due_ms: int
    owner: InJournal | InCold


class Rig(Protocol):
    """A warm queue that is empty, and clocks that stand still until they are moved on."""

    def owner(self, number: int) -> InJournal | InCold:
        """The owner of a run, if a check does not name one."""

    def run(self, number: int, items: int, **options: Unpack[RunOptions]) -> LentRun:
        options.setdefault("owner", self.owner(number))
        return make_run(number, items, **options)

    def fill(self, items: int, size: int, scheduled: int = 0, leased: int = 0) -> Fill:
        """The fill of a queue whose runs have the rig's own owner."""
        is_cold = isinstance(self.owner(0), InCold)
        return Fill(items, size, scheduled, leased, items if is_cold else 0)

    @property
    def warm(self) -> WarmQueue: ...

    @property
    def patience_s(self) -> float:
        """How long to wait for something that must happen."""

    def now_ms(self) -> int:
        """What the warm queue takes for the time: the wall clock."""

    def steady_ms(self) -> int:
        """The clock of leases."""

    async def advance(self, ms: int) -> None:
        """Time passes, on both clocks."""

    def step(self, ms: int) -> None:
        """The wall clock is set, forward or back. Nothing, if it is not this host's to set: the
        clock of leases is the same then."""

    async def settle(self) -> None:
        """Whoever waits has had the time to notice what there is to notice."""


Check = Callable[[Rig], Awaitable[None]]


class Checks(list[Check]):
    """A part of a suite; collects what it decorates."""

    def __call__(self, check: Check) -> Check:
        self.append(check)
        return check


def make_run(
    number: int,
    items: int,
    *,
    item_size: int = 20,
    flow: str = "",
    priority: int = 5,
    enqueued_ms: int = START_MS,
    due_ms: int = 0,
    owner: InJournal | InCold | None = None,
) -> LentRun:
    """Numbers stand for run ids, which they order. Without an owner the run is the journal's, at
    the position of its number."""
    data = encode_run(
        [bytes(item_size)] * items,
        queue="q",
        flow=flow,
        priority=priority,
        enqueued_ms=enqueued_ms,
        due_ms=due_ms,
        run_id=number.to_bytes(16, "big"),
        compressed=False,
    )
    return LentRun(read_head(data), data, owner or in_journal(number))


def in_journal(number: int) -> InJournal:
    return InJournal(token=number + 1000, position=number)


def in_row(number: int) -> InCold:
    return InCold(number.to_bytes(16, "big"), EPOCH)


def make_row(number: int, items: int, **options: Unpack[RunOptions]) -> LentRun:
    """A run that belongs to a row of its own."""
    options.setdefault("owner", in_row(number))
    return make_run(number, items, **options)


def whole(run: LentRun, due_ms: int = 0) -> Slice:
    return Slice(run, item_bits(0, run.head.count), due_ms=due_ms)


def part(run: LentRun, first: int, last: int) -> Slice:
    return Slice(run, item_bits(first, last))


def view(slice_: Slice) -> View:
    """What can be seen of a slice, wherever it has been meanwhile."""
    errors = tuple(error.text for error in slice_.errors)
    return slice_.sort_key, slice_.bits, slice_.attempt, slice_.due_ms, errors


def views(slices: Iterable[Slice | Leased]) -> list[View]:
    return [view(each.slice if isinstance(each, Leased) else each) for each in slices]


def places(slices: Iterable[Slice | Leased]) -> list[tuple[int, int, int]]:
    """The number of the run, the first item and the last (exclusive), of slices without holes."""
    shown = []
    for each in slices:
        slice_ = each.slice if isinstance(each, Leased) else each
        last = slice_.bits.bit_length()
        first = last - slice_.items
        assert slice_.bits == item_bits(first, last)
        shown.append((int.from_bytes(slice_.run.head.run_id, "big"), first, last))
    return shown


async def lease_all(warm: WarmQueue, queue: str = "q") -> list[Leased]:
    return await warm.lease(queue, 10**9, 10**12, LEASE_S)


@asynccontextmanager
async def waiting(rig: Rig, queue: str = "q") -> AsyncIterator[trio.Event]:
    """Somebody waits; the event says that the wait is over."""
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def wait() -> None:
            await rig.warm.wait(queue)
            done.set()

        nursery.start_soon(wait)
        await rig.settle()
        yield done
        nursery.cancel_scope.cancel()


async def comes(rig: Rig, done: trio.Event) -> None:
    with trio.fail_after(rig.patience_s):
        await done.wait()
