"""a. Four producer processes, runs of 1,000: against the disk, with the groups that there were."""

from typing import Final

from bench.daemon_process import DRAINED, HOLDING, Daemon, places, spare_chunks_for
from bench.disk import WrittenFile, replay
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.producers import Work, push_together

PRODUCERS: Final = 4
ITEMS_GOAL: Final = 400_000
DISK_SHARE_GOAL: Final = 0.6


class _Figures:
    def __init__(self) -> None:
        self.items_per_s: list[float] = []
        self.bytes_per_s: list[float] = []
        self.disk_bytes_per_s: list[float] = []
        self.syncs_per_1000: list[float] = []
        self.group_bytes: list[float] = []


def four_producers(plan: Plan) -> list[Row]:
    figures = {
        (work, queue): _Figures()
        for work in (Work.SNAPPY, Work.READY)
        for queue in (HOLDING, DRAINED)
    }
    spool = {"spare_chunks": spare_chunks_for(plan.seconds), "max_bytes": "64Gi"}
    with (
        places("a") as at,
        Daemon(at, spool, is_traced=True) as daemon,
        WrittenFile(at.state / "written") as file,
    ):
        for _ in plan.each_round("a: four producers"):
            for (work, queue), found in figures.items():
                _measure(daemon, file, work, queue, plan.seconds, found)
    return [row for (work, queue), found in figures.items() for row in _rows(work, queue, found)]


def _measure(
    daemon: Daemon, file: WrittenFile, work: Work, queue: str, seconds: float, found: _Figures
) -> None:
    assert daemon.trace is not None
    daemon.wait_until_quiet()
    pushed, syncs = push_together(PRODUCERS, daemon.socket, queue, work, seconds, daemon.trace)
    daemon.wait_until_quiet()
    written = sum(syncs.group_bytes)
    found.items_per_s.append(pushed.items_per_s)
    found.bytes_per_s.append(written / pushed.seconds)
    found.disk_bytes_per_s.append(replay(file, syncs.group_bytes, seconds))
    found.syncs_per_1000.append(syncs.count / pushed.items * 1000)
    found.group_bytes.append(written / len(syncs.group_bytes))


def _rows(work: Work, queue: str, found: _Figures) -> list[Row]:
    """The same measurement twice: in items against the goal, in bytes against the disk."""
    is_drained = queue == DRAINED
    what = f"4 producers, {work}" + (", drained meanwhile" if is_drained else "")
    syncs = Samples.of(found.syncs_per_1000).median
    group_kib = Samples.of(found.group_bytes).median / 1024
    return [
        Row(
            "a",
            what,
            "items/s",
            Samples.of(found.items_per_s),
            goal=None if is_drained else Goal(value_min=ITEMS_GOAL),
            syncs_per_1000=syncs,
        ),
        Row(
            "a",
            what,
            "MB/s",
            Samples.of([rate / 1e6 for rate in found.bytes_per_s]),
            f"the disk, groups of {group_kib:,.0f} KiB",
            Samples.of([rate / 1e6 for rate in found.disk_bytes_per_s]),
            goal=None if is_drained else Goal(ratio_min=DISK_SHARE_GOAL),
            syncs_per_1000=syncs,
            limit_syncs_per_1000=syncs,
        ),
    ]
