"""Groups dead letters by their last error, so that a thousand failures are read as three.

The daemon groups them (`dead.groups`): errors that differ only in numbers, ids and quoted words
are one kind. Each request reads a bounded number of letters, the oldest first; this module merges
the answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from daemon.cli.client import ago

if TYPE_CHECKING:
    from rich.table import Table

    from forebay.control import Perform

NO_ERROR: Final = "(no error recorded)"


@dataclass(frozen=True, slots=True)
class DeadGroup:
    queue: str
    kind: str
    """The error without the parts that differ between items."""
    error: str
    """The error of one of them, on one line."""
    count: int
    example: str
    """The id of that one."""
    first_ms: int
    last_ms: int

    def as_object(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "kind": self.kind,
            "count": self.count,
            "error": self.error,
            "example": self.example,
            "first_died_ms": self.first_ms,
            "last_died_ms": self.last_ms,
        }


class Grouped(NamedTuple):
    groups: Sequence[DeadGroup]
    """The most frequent first."""
    letters: int
    """How many letters were read."""
    is_complete: bool
    """Whether all letters were read."""


def read_groups(perform: "Perform", which: Mapping[str, Any], letters_max: int) -> Grouped:
    """Reads all letters, or about `letters_max`."""
    found: list[DeadGroup] = []
    letters, cursor = 0, None
    while True:
        answer = perform("dead.groups", which=dict(which), cursor=cursor)
        found += map(group_of, answer["groups"])
        letters += answer["letters"]
        cursor = answer["cursor"]
        if cursor is None or letters >= letters_max:
            return Grouped(put_together(found), letters, cursor is None)


def group_of(answer: Mapping[str, Any]) -> DeadGroup:
    return DeadGroup(
        answer["queue"],
        answer["error"],
        " ".join(answer["example"].split()) or NO_ERROR,
        answer["count"],
        answer["example_id"],
        answer["first_ms"],
        answer["last_ms"],
    )


def put_together(groups: Iterable[DeadGroup]) -> list[DeadGroup]:
    """One group per queue and kind of error; the first example is kept."""
    found: dict[tuple[str, str], DeadGroup] = {}
    for group in groups:
        key = (group.queue, group.kind)
        before = found.get(key)
        if before is not None:
            group = DeadGroup(
                *key,
                before.error,
                before.count + group.count,
                before.example,
                min(before.first_ms, group.first_ms),
                max(before.last_ms, group.last_ms),
            )
        found[key] = group
    return sorted(found.values(), key=lambda group: (-group.count, group.queue, group.kind))


def group_table(groups: Iterable[DeadGroup], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("queue", no_wrap=True)
    table.add_column("last died", justify="right", no_wrap=True)
    table.add_column("example", no_wrap=True, overflow="fold")
    table.add_column("its last error", no_wrap=True, overflow="ellipsis")
    for group in groups:
        table.add_row(
            f"{group.count:,}",
            group.queue,
            ago(group.last_ms, at_ms),
            group.example,
            escape(group.error),
        )
    return table
