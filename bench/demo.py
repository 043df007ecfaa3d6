"""`make demo`: a daemon, 200,000 items, a kill -9 in the middle, and books that balance.

A plain Python client pushes CRM events into three queues: `crm` is delivered to a file, `audit` to
nobody, `reminders` to a file after a delay. Half-way, with runs in flight, the daemon is killed
and started again; the client sends again what was not acknowledged and goes on. In the end
every event that was acknowledged must be in the files, whatever was delivered twice is counted
by its item id, and the daemon's own books must say the same. Exits 1 if they do not.

What it leaves to look at lies under ./.state/demo until the next demo.
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import forebay
from bench.daemon_process import ROOT, Daemon, Places
from bench.delivered import Delivered, check_delivered, event_id
from bench.demo_board import Board
from bench.items import crm_stream

CRM: Final = "crm"
AUDIT: Final = "audit"
REMINDERS: Final = "reminders"
FILED: Final = (CRM, REMINDERS)

BATCH_ITEMS: Final = 5000
DELAY_S: Final = 3.0
DELIVERY_S: Final = 60.0
LOOK_S: Final = 0.1
LOOK_ITEMS: Final = 500
URGENT: Final = 0
NORMAL: Final = 5


@dataclass(frozen=True, slots=True)
class Batch:
    queue: str
    priority: int = NORMAL
    delay: float = 0.0


BATCHES: Final = (
    Batch(REMINDERS, delay=DELAY_S),
    *(Batch(CRM), Batch(CRM), Batch(AUDIT)) * 12,
    Batch(AUDIT),
    Batch(CRM),
    Batch(CRM, priority=URGENT),
)
"""Reminders first, so that their delay passes while the rest is pushed."""
CRASH_AT: Final = len(BATCHES) // 2


class Demo:
    def __init__(self, daemon: Daemon, board: Board) -> None:
        self._daemon = daemon
        self._board = board
        self._stream = crm_stream()
        self._next_look = 0.0
        self.events: dict[str, set[str]] = {}
        """What was acknowledged, by queue; the event ids of the payloads."""
        self.sent = 0
        self.duplicate_runs = 0
        """Runs that were sent again after the crash and were there already."""

    def push(self) -> None:
        with self._daemon.connect() as client:
            for number, batch in enumerate(BATCHES):
                events: set[str] = set()
                payloads = self._payloads(events, is_crash=number == CRASH_AT)
                result = client.push(
                    batch.queue, payloads, priority=batch.priority, delay=batch.delay
                )
                self.events.setdefault(batch.queue, set()).update(events)
                self.duplicate_runs += result.duplicates

    def wait_until_delivered(self) -> dict[str, Any]:
        """The daemon's books, when nothing is held any more."""
        deadline = time.monotonic() + DELIVERY_S
        while True:
            stats = self._daemon.stats()
            self._board.show(self.sent, stats["queues"])
            if not stats["daemon"]["held"] or time.monotonic() > deadline:
                return stats
            time.sleep(LOOK_S)

    def _payloads(self, events: set[str], *, is_crash: bool) -> Iterator[bytes]:
        for number, payload in enumerate(islice(self._stream, BATCH_ITEMS)):
            if is_crash and number == BATCH_ITEMS // 2:
                self._crash()
            if number % LOOK_ITEMS == 0:
                self._look()
            events.add(event_id(payload))
            self.sent += 1
            yield payload

    def _crash(self) -> None:
        self._board.say(f"kill -9 {self._daemon.pid}, with runs in flight")
        self._daemon.kill()
        self._daemon.start()
        found = self._daemon.logged("spooler.recovered") or {}
        self._board.say(
            f"started again in {self._daemon.ready_s:.2f} s as {self._daemon.pid}: "
            f"{found.get('held', 0):,} items were waiting on disk"
        )

    def _look(self) -> None:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_S
            self._board.show(self.sent, self._daemon.stats()["queues"])


def main() -> int:
    console = Console(highlight=False)
    state = ROOT / ".state" / "demo"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-") as sockets:
        daemon = Daemon(Places(state, Path(sockets)), queues=_queues(state))
        with daemon, Board(console, _totals()) as board:
            board.say(
                f"forebay runs as {daemon.pid} on {daemon.socket}, ready in {daemon.ready_s:.2f} s"
            )
            demo = Demo(daemon, board)
            try:
                demo.push()
                stats = demo.wait_until_delivered()
            except forebay.ForebayError as error:
                board.say(f"the push failed: {error}")
                return 1
            daemon.stop()
    files = {queue: _check_file(state / f"{queue}.jsonl", demo.events[queue]) for queue in FILED}
    _print_books(console, demo, stats, files)
    problems = _problems(demo, stats, files)
    for problem in problems:
        console.print(f"[bold red]{problem}[/]")
    if not problems:
        took = time.monotonic() - started
        console.print(
            f"[green]The books balance:[/] everything pushed was delivered, in {took:.0f} s."
        )
    _print_places(console, state)
    return 1 if problems else 0


def _queues(state: Path) -> dict[str, Any]:
    to_file = {"handler": {"type": "file", "path": str(state / "{queue}.jsonl")}}
    return {CRM: to_file, REMINDERS: to_file, AUDIT: {"handler": {"type": "null"}}}


def _totals() -> dict[str, int]:
    batches = Counter(batch.queue for batch in BATCHES)
    return {queue: count * BATCH_ITEMS for queue, count in batches.items()}


def _check_file(path: Path, pushed: set[str]) -> Delivered:
    with path.open("rb") as lines:
        return check_delivered(lines, pushed)


def _print_books(
    console: Console, demo: Demo, stats: dict[str, Any], files: dict[str, Delivered]
) -> None:
    table = Table("queue", title="The books", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("pushed", "accepted", "delivered", "held", "lines", "again", "missing"):
        table.add_column(name, justify="right")
    for queue, events in demo.events.items():
        books, file = stats["queues"][queue], files.get(queue)
        in_file = (file.lines, file.duplicates, file.missing) if file else ("", "", "")
        counts = (len(events), books["accepted"], books["delivered"], books["held"], *in_file)
        table.add_row(queue, *(f"{n:,}" if isinstance(n, int) else n for n in counts))
    console.print(table)
    console.print(
        "Sent again after the crash although the daemon had stored them, and known by their ids: "
        f"{demo.duplicate_runs} runs.",
        soft_wrap=True,
    )


def _problems(demo: Demo, stats: dict[str, Any], files: dict[str, Delivered]) -> list[str]:
    problems = []
    for queue, events in demo.events.items():
        books = stats["queues"][queue]
        if not len(events) == books["accepted"] == books["delivered"]:
            problems.append(
                f"{queue}: {len(events):,} pushed, {books['accepted']:,} accepted, "
                f"{books['delivered']:,} delivered"
            )
    for queue, file in files.items():
        if not file.is_whole:
            problems.append(
                f"{queue}.jsonl: {file.missing:,} missing, {file.twins:,} stored twice, "
                f"{file.strangers:,} that nobody pushed"
            )
    return problems


def _print_places(console: Console, state: Path) -> None:
    shown = Path(os.path.relpath(state))
    console.print("Look at:")
    for name, what in (
        ("crm.jsonl", "what was delivered, a JSON object a line"),
        ("reminders.jsonl", f"the same, {DELAY_S:g} s later"),
        ("daemon.log", "what the daemon said, both of its lives"),
        ("forebay.yaml", "its configuration"),
    ):
        console.print(f"  {shown / name}  {what}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
