"""What was acknowledged, counted as the answers come."""

from typing import NamedTuple

from forebay.run import read_count
from forebay.wire import Buffer


class PushResult(NamedTuple):
    """Everything in it is durable in the daemon."""

    items: int
    runs: int
    duplicates: int
    """Of the runs, those that an earlier try had stored already."""


class Tally:
    __slots__ = ("duplicates", "items", "runs")

    def __init__(self) -> None:
        self.items = 0
        self.runs = 0
        self.duplicates = 0

    def add(self, run: Buffer, is_duplicate: bool) -> None:
        self.items += read_count(run)
        self.runs += 1
        self.duplicates += is_duplicate

    def result(self) -> PushResult:
        return PushResult(self.items, self.runs, self.duplicates)
