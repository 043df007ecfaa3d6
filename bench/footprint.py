"""e. What a million items that wait cost: memory of the daemon, and bytes on the disk."""

import sqlite3
import time
from contextlib import closing
from typing import Final

from bench.backlog import backlog_items, fill
from bench.daemon_process import Daemon, places
from bench.figures import Goal, Row, Samples
from bench.plan import Plan

MIB: Final = 1024 * 1024
MEMORY_GOAL_MIB: Final = 100
DISK_GOAL: Final = 1.05
LOOK_S: Final = 0.05


class _Figures:
    def __init__(self) -> None:
        self.empty: list[float] = []
        self.pushed: list[float] = []
        self.peak: list[float] = []
        self.restarted: list[float] = []
        self.disk: list[float] = []
        self.snappy: list[float] = []


def footprint(plan: Plan) -> list[Row]:
    found = _Figures()
    items = backlog_items(plan)
    for _ in plan.each_round(f"e: a backlog of {items:,} items"):
        _measure(items, found)
    empty = Samples.of(found.empty)
    backlog = f"a backlog of {items:,}"
    goal = Goal(value_max=MEMORY_GOAL_MIB)
    return [
        _memory(f"RSS with {backlog}, just pushed", found.pushed, empty, goal),
        _memory(f"RSS with {backlog}, restarted", found.restarted, empty, goal),
        _memory(f"RSS at its peak while {items:,} were pushed", found.peak, empty, None),
        Row(
            "e",
            f"disk with {backlog}",
            "MB",
            Samples.of(found.disk),
            "the payloads under Snappy",
            Samples.of(found.snappy),
            goal=Goal(ratio_max=DISK_GOAL),
        ),
    ]


def _memory(what: str, values: list[float], empty: Samples, goal: Goal | None) -> Row:
    return Row("e", what, "MiB", Samples.of(values), "RSS with an empty spool", empty, goal)


def _measure(items: int, found: _Figures) -> None:
    with places("e") as at, Daemon(at) as daemon:
        found.empty.append(daemon.memory_bytes() / MIB)
        found.snappy.append(fill(daemon, items, 1000) / 1e6)
        found.pushed.append(daemon.memory_bytes() / MIB)
        found.peak.append(daemon.memory_bytes("VmHWM") / MIB)
        found.disk.append(disk_bytes(daemon) / 1e6)
        daemon.stop()
        daemon.start()
        held = daemon.stats()["daemon"]["held"]
        if held != items:
            raise RuntimeError(f"the daemon found {held:,} of {items:,} items")
        found.restarted.append(daemon.memory_bytes() / MIB)


def disk_bytes(daemon: Daemon) -> int:
    """Blocks, the files beside the chunks, and the cold store, once all that overflows is there.

    Not what is written ahead or kept free: it holds nothing. The cold store's log is counted where
    it will be emptied to.
    """
    while daemon.stats()["daemon"]["spooled"]:
        time.sleep(LOOK_S)
    besides = sum(
        path.stat().st_size
        for path in daemon.spool_dir.iterdir()
        if path.is_file() and path.suffix != ".chunk" and not path.name.startswith("spare-")
    )
    ballast = daemon.spool_dir / "ballast"
    besides -= ballast.stat().st_size if ballast.exists() else 0
    return int(daemon.stats()["spool"]["bytes"]) + besides + _cold_bytes(daemon)


def _cold_bytes(daemon: Daemon) -> int:
    path = daemon.spool_dir.parent / "cold.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    return int(pages * page_bytes)
