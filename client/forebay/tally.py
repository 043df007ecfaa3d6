"""Counts what the daemon has acknowledged, as the answers arrive."""

from typing import NamedTuple

from forebay.keyed import KeyOutcome, count_outcomes
from forebay.run import read_count, read_head
from forebay.wire import Buffer


class PushResult(NamedTuple):
    """Acknowledged items and runs. They are durable in the daemon; in a keyed queue, their outcomes
    are."""

    items: int
    runs: int
    duplicates: int
    """Runs that an earlier try had already stored."""


class OutcomeCounts(NamedTuple):
    """Items pushed to a keyed queue, by outcome; all 0 for any other queue."""

    created: int = 0
    updated: int = 0
    ignored: int = 0
    conflict: int = 0


class Tally:
    __slots__ = ("duplicates", "items", "outcomes", "runs")

    def __init__(self) -> None:
        self.items = 0
        self.runs = 0
        self.duplicates = 0
        self.outcomes = OutcomeCounts()

    def add(self, run: Buffer, is_duplicate: bool) -> None:
        self.items += read_count(run)
        self.runs += 1
        self.duplicates += is_duplicate

    def decide(self, run: Buffer, outcomes: bytes) -> None:
        """Counts a run of a keyed queue, with one byte (`KeyOutcome`) per item."""
        self.add(run, is_duplicate=False)
        counts = zip(self.outcomes, count_outcomes(outcomes), strict=True)
        self.outcomes = OutcomeCounts(*(before + more for before, more in counts))

    def result(self) -> PushResult:
        return PushResult(self.items, self.runs, self.duplicates)


class Collected(Tally):
    """Keeps the outcome of every item."""

    __slots__ = ("_by_run",)

    def __init__(self) -> None:
        super().__init__()
        self._by_run: dict[bytes, bytes] = {}

    def add(self, run: Buffer, is_duplicate: bool) -> None:
        super().add(run, is_duplicate)
        # In a queue without unique keys every item is new.
        head = read_head(run)
        self._by_run[head.run_id] = bytes((KeyOutcome.CREATED,)) * head.count

    def decide(self, run: Buffer, outcomes: bytes) -> None:
        super().decide(run, outcomes)
        self._by_run[read_head(run).run_id] = outcomes

    def in_order(self) -> bytes:
        """The outcomes of all runs, in the order in which the runs were made: the ids of one
        process sort in that order."""
        return b"".join(outcomes for _, outcomes in sorted(self._by_run.items()))
