"""What a daemon has delivered, by its own books, and what that cost it.

A rate is what the books say was delivered, over the time until nothing was held any more: what was
pushed and waits somewhere counts for nothing. Books that do not balance end the benchmark.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from bench.daemon_process import Daemon
from bench.producers import RUN_ITEMS, Work, run_maker
from forebay import Client

POLL_S: Final = 0.01
"""How often the books are read while something drains: a part in a hundred of a second."""
WAIT_S: Final = 300.0
FILL_WINDOW: Final = 32

CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")

Books = dict[str, int]


@dataclass(frozen=True, slots=True)
class Delivered:
    items: int
    seconds: float
    cpu_s: float = 0.0
    """Of the daemon, in all its threads."""

    @property
    def items_per_s(self) -> float:
        return self.items / self.seconds

    @property
    def cpu_us_per_item(self) -> float:
        return self.cpu_s / self.items * 1e6


def read_books(client: Client, queue: str) -> Books:
    stats = client.stats()
    for books in (stats["daemon"], *stats["queues"].values()):
        check_books(books)
    return stats["queues"].get(queue, dict.fromkeys(stats["daemon"], 0))


def check_books(books: Books) -> None:
    came = books["accepted"] + books["moved_in"]
    ended = sum(
        books[name] for name in ("delivered", "dead", "dropped", "deleted", "lost", "moved_out")
    )
    parts = sum(books[name] for name in ("spooled", "scheduled", "warm", "cold", "running"))
    if came != ended + books["held"] or parts != books["held"]:
        raise RuntimeError(f"the books do not balance: {books}")
    if books["dead"] or books["dropped"] or books["lost"]:
        raise RuntimeError(f"items were given up: {books}")


def wait_for(client: Client, queue: str, is_there: Callable[[Books], bool]) -> Books:
    """The books, as soon as they are so."""
    deadline = time.monotonic() + WAIT_S
    while True:
        books = read_books(client, queue)
        if is_there(books):
            return books
        if time.monotonic() > deadline:
            raise RuntimeError(f"{queue} stands still: {books}")
        time.sleep(POLL_S)


def deliver(daemon: Daemon, queue: str, start: Callable[[Client], object]) -> Delivered:
    """From the call of `start` until nothing of the queue is held."""
    with daemon.connect() as client:
        before = read_books(client, queue)
        cpu_s = cpu_seconds(daemon.pid)
        started = time.perf_counter()
        start(client)
        after = wait_for(client, queue, is_empty)
        took = time.perf_counter() - started
        cpu_s = cpu_seconds(daemon.pid) - cpu_s
    return Delivered(after["delivered"] - before["delivered"], took, cpu_s)


def fill(client: Client, queue: str, items: int) -> None:
    """Pushes `items` items, as fast as ready-made runs go."""
    make_run = run_maker(Work.READY, queue)
    for _ in repeat(None, items // RUN_ITEMS):
        client.submit(make_run(), window=FILL_WINDOW)
    client.drain()


def is_empty(books: Books) -> bool:
    return not books["held"]


def is_routed(books: Books) -> bool:
    """Everything has found its tier."""
    return not books["spooled"]


def cpu_seconds(pid: int) -> float:
    """User's and system's, of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@contextmanager
def troubles_told(daemon: Daemon, *, but_for: str = "") -> Iterator[Daemon]:
    """What the daemon warned of while it was measured goes to the standard error, but for an
    event that is meant to happen."""
    try:
        yield daemon
    finally:
        for entry in troubles(daemon.log_path, but_for):
            print(f"the daemon says: {entry}", file=sys.stderr)


def troubles(log_path: Path, but_for: str, at_most: int = 10) -> list[dict[str, Any]]:
    found = []
    for line in log_path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"event": line}
        if entry.get("level") not in ("info", "debug") and entry["event"] != but_for:
            found.append(entry)
    return found[:at_most]
