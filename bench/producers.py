"""Producers: what they do for each run, and how fast they get rid of runs.

A producer works for `seconds` after a short warm-up, waits until everything is acknowledged, and
counts that wait. Its items exist before the clock starts.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import cycle
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final, Protocol

import forebay
from bench.items import crm_runs, restamp
from bench.sync_trace import Syncs, SyncTrace
from forebay.run import encode_run

RUN_ITEMS: Final = 1000
RUNS_MADE: Final = 8
"""Different runs that a producer goes round and round."""
WARM_UP_RUNS: Final = 16
WINDOW: Final = 8
TIMEOUT_S: Final = 120.0
START_S: Final = 60.0


class Work(StrEnum):
    """What a producer does for each run before it is sent."""

    SNAPPY = "encode and compress"
    PLAIN = "encode, uncompressed"
    READY = "ready-made"
    """A new id and a new checksum for a run that was encoded and compressed before."""
    READY_PLAIN = "ready-made, uncompressed"

    @property
    def is_compressed(self) -> bool:
        return self in (Work.SNAPPY, Work.READY)

    @property
    def ready_made(self) -> "Work":
        """The same bytes without the work."""
        return Work.READY if self.is_compressed else Work.READY_PLAIN


class Submitter(Protocol):
    def submit(self, run: bytes, *, window: int) -> None: ...

    def drain(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Pushed:
    items: int
    run_bytes: int
    seconds: float

    @property
    def items_per_s(self) -> float:
        return self.items / self.seconds


def run_maker(work: Work, queue: str, items: int = RUN_ITEMS, seed: int = 1) -> Callable[[], bytes]:
    """Makes the next run, of items that repeat after a while."""
    made = crm_runs(RUNS_MADE, items, seed)
    encode = partial(encode_run, queue=queue, compressed=work.is_compressed)
    if work is work.ready_made:
        runs = cycle([encode(payloads) for payloads in made])
        return lambda: restamp(next(runs))
    to_encode = cycle(made)
    return lambda: encode(next(to_encode))


def push_for(
    client: Submitter, make_run: Callable[[], bytes], seconds: float, window: int = WINDOW
) -> Pushed:
    """Pushes runs of `RUN_ITEMS` items."""
    runs = size = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        run = make_run()
        client.submit(run, window=window)
        runs += 1
        size += len(run)
    client.drain()
    return Pushed(runs * RUN_ITEMS, size, time.perf_counter() - started)


def warm_up(client: Submitter, make_run: Callable[[], bytes], window: int = WINDOW) -> None:
    for _ in range(WARM_UP_RUNS):
        client.submit(make_run(), window=window)
    client.drain()


def push_items_for(client: forebay.Client, queue: str, seconds: float) -> Pushed:
    """As most programs do it: items go into `Client.push` one after the other."""
    items = [item for run in crm_runs(RUNS_MADE, RUN_ITEMS) for item in run]
    started = time.perf_counter()

    def until_then() -> Iterator[bytes]:
        while time.perf_counter() - started < seconds:
            yield from items

    pushed = client.push(queue, until_then(), run_items=RUN_ITEMS, window=WINDOW)
    return Pushed(pushed.items, 0, time.perf_counter() - started)


def push_together(
    count: int, socket: Path, queue: str, work: Work, seconds: float, trace: SyncTrace
) -> tuple[Pushed, Syncs]:
    """`count` processes push at the same time, and the daemon's trace tells what that took."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(count + 1)
    results: SimpleQueue[Pushed | Exception] = context.SimpleQueue()
    processes = [
        context.Process(
            target=_produce,
            args=(socket, queue, work, seed, seconds, together, results),
            daemon=True,
        )
        for seed in range(count)
    ]
    for process in processes:
        process.start()
    together.wait(START_S)
    began = time.perf_counter()
    mark = trace.mark()
    pushed = [results.get() for _ in processes]
    took = time.perf_counter() - began
    syncs = trace.since(mark)
    for process in processes:
        process.join()
    items = run_bytes = 0
    for result in pushed:
        if isinstance(result, Exception):
            raise result
        items += result.items
        run_bytes += result.run_bytes
    return Pushed(items, run_bytes, took), syncs


def _produce(
    socket: Path,
    queue: str,
    work: Work,
    seed: int,
    seconds: float,
    together: Barrier,
    results: "SimpleQueue[Pushed | Exception]",
) -> None:
    make_run = run_maker(work, queue, seed=seed)
    with forebay.connect(socket, TIMEOUT_S) as client:
        warm_up(client, make_run)
        together.wait(START_S)
        try:
            results.put(push_for(client, make_run, seconds))
        except forebay.ForebayError as error:
            # The parent waits for a result: it must not wait for ever.
            results.put(error)
