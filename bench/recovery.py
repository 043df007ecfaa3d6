"""d. How long a spool with a million items takes to come back, with its hints and without.

Before each start the spool's files are put out of the page cache, as after a reboot. `recovery` is
`Journal.recover` and its places alone, timed in a fresh process on a copy; `to ready` is a real
daemon from the start of its process, beside the same with an empty spool.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.backlog import backlog_items, fill
from bench.daemon_process import ROOT, Daemon, places
from bench.figures import Goal, Row, Samples
from bench.plan import Plan

WITH_HINTS_GOAL_S: Final = 0.5
SCAN_GOAL_S: Final = 5.0
SINGLE_RUNS: Final = 100_000
"""For information: the worst case, a tenth of the size."""
HINTS: Final = ("*.index", "spool.meta")
READ_BYTES: Final = 1024 * 1024


class _Case:
    """A state of the spool in which a daemon may find it."""

    def __init__(
        self, name: str, goal_s: float, prepare: Callable[[Path], None], *, is_scan: bool = False
    ) -> None:
        self.name = name
        self.goal_s = goal_s
        self.is_scan = is_scan
        self.prepare = prepare
        self.recover_s: list[float] = []
        self.ready_s: list[float] = []


def recovery(plan: Plan) -> list[Row]:
    return [
        *_measure(plan, backlog_items(plan), 1000),
        *_measure(plan, SINGLE_RUNS // 10 if plan.is_quick else SINGLE_RUNS, 1),
    ]


def _measure(plan: Plan, items: int, run_items: int) -> list[Row]:
    empty_ready_s: list[float] = []
    read_s: list[float] = []
    with places("d") as at:
        stopped, killed = at.state / "stopped", at.state / "killed"
        _build(Daemon(at), items, run_items, stopped, killed)
        cases = [
            _Case("after a clean stop", WITH_HINTS_GOAL_S, lambda to: _copy(stopped, to)),
            _Case("after kill -9", WITH_HINTS_GOAL_S, lambda to: _copy(killed, to)),
            _Case(
                "by scan, no hints", SCAN_GOAL_S, lambda to: _copy(killed, to, *HINTS), is_scan=True
            ),
        ]
        daemon = Daemon(at)
        for _ in plan.each_round(f"d: recovery of {items:,} items in runs of {run_items:,}"):
            shutil.rmtree(daemon.state_dir, ignore_errors=True)
            empty_ready_s.append(_start_and_stop(daemon))
            for case in cases:
                shutil.rmtree(daemon.spool_dir)
                case.prepare(daemon.spool_dir)
                _forget_pages(daemon.spool_dir)
                case.recover_s.append(_time_recovery(daemon.spool_dir))
                shutil.rmtree(daemon.spool_dir)
                case.prepare(daemon.spool_dir)
                _forget_pages(daemon.spool_dir)
                case.ready_s.append(_start_and_stop(daemon, items))
            _forget_pages(killed)
            read_s.append(_time_reading(killed))
    spool = f"{items // run_items:,} runs of {run_items:,}"
    rows = []
    for case in cases:
        rows.append(
            Row(
                "d",
                f"recovery {case.name}, {spool}",
                "s",
                Samples.of(case.recover_s),
                "reading the files" if case.is_scan else "",
                Samples.of(read_s) if case.is_scan else None,
                goal=Goal(value_max=case.goal_s) if run_items > 1 else None,
            )
        )
        rows.append(
            Row(
                "d",
                f"start to ready {case.name}, {spool}",
                "s",
                Samples.of(case.ready_s),
                "start with an empty spool",
                Samples.of(empty_ready_s),
            )
        )
    return rows


def _build(daemon: Daemon, items: int, run_items: int, stopped: Path, killed: Path) -> None:
    """Two copies of the same backlog: one of a daemon that was killed, one that was stopped."""
    with daemon:
        fill(daemon, items, run_items)
    _copy(daemon.spool_dir, killed)
    with daemon:
        daemon.stop()
    _copy(daemon.spool_dir, stopped)


def _start_and_stop(daemon: Daemon, items: int = 0) -> float:
    with daemon:
        held = daemon.stats()["daemon"]["held"]
        if held != items:
            raise RuntimeError(f"the daemon found {held:,} of {items:,} items")
        daemon.stop()
    return daemon.ready_s


def _time_recovery(spool: Path) -> float:
    """In a process of its own: neither its memory nor its imports count."""
    command = [sys.executable, "-m", "bench.recovery", str(spool)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _time_reading(spool: Path) -> float:
    started = time.perf_counter()
    for path in spool.glob("*.chunk"):
        with path.open("rb", buffering=0) as file:
            while file.read(READ_BYTES):
                pass
    return time.perf_counter() - started


def _copy(source: Path, to: Path, *without: str) -> None:
    """Without the spares as well: they hold nothing."""
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("spare-*", *without))


def _forget_pages(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(spool: Path) -> None:
    """Prints how many seconds the journal takes to recover, places and all."""
    from actors.config.settings import SpoolSettings
    from daemon.journal.files import Files
    from daemon.journal.journal import Journal

    settings = SpoolSettings()
    started = time.perf_counter()
    found = Journal(Files(spool), settings).recover(settings.dedup_runs, lambda *_: None)
    live = sum(1 for chunk in found.chunks for _ in chunk.live)
    took = time.perf_counter() - started
    if not live:
        raise RuntimeError("no run was found")
    print(took)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
