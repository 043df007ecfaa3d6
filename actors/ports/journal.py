"""The journal as an interface. The implementation lives in `daemon/journal/`.

The journal blocks: each method says on which of the spooler's threads it runs. Cancellation never
abandons a call that has begun; the spooler waits for it in a shielded section.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from actors.model.books import Books
from actors.model.failures import Portions, RetryNote
from actors.model.runs import Fate, Place, StoredRun
from forebay.errors import Refused
from forebay.run import RunHead

Record = dict[str, Any]
"""A fact about a write (actors/spooler/writes.py), for the journal to keep: a JSON object."""


@dataclass(frozen=True, slots=True)
class ItemMark:
    """The fate of items of a run in the chunk `number`."""

    number: int
    offset: int
    run_id: bytes | None
    """None: the run was not read yet; the journal looks the id up."""
    first: int
    last: int
    fate: Fate
    note: RetryNote | None = None
    """Only for `Fate.RETRY`."""


@dataclass(slots=True)
class Committed:
    """The result of a commit: the first `len(positions)` runs are durable, the rest not stored."""

    positions: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes on disk, in the order of `positions`."""
    fingerprints: list[int] = field(default_factory=list)
    """Fingerprints of the runs (actors/spooler/intake.py), in the order of `positions`."""
    started: list[int] = field(default_factory=list)
    """Chunks that came into use, by number."""
    sealed: list[int] = field(default_factory=list)
    """Chunks that take no more runs."""
    failure: Refused | None = None
    """Why the rest was not stored."""
    marks_failure: OSError | None = None
    """The marks of this commit are not written and must be repeated. No mark is written if a run
    was not stored: the mark may be the drop of a run that was to make room for it."""
    abandoned: list[tuple[int, OSError]] = field(default_factory=list)
    """Chunks given up because a write or a sync failed."""
    records_failure: Refused | None = None
    """Why no record of this commit is stored."""


class LiveRun(NamedTuple):
    """A run of `items` items that was found on disk, not all of them settled."""

    position: int
    size: int
    items: int
    account: str
    priority: int
    due_ms: int
    done: int
    """Settled items, as bits."""
    portions: Portions = ()
    run_id: bytes = b""

    @property
    def place(self) -> Place:
        return Place(self.position, self.size, self.items - self.done.bit_count())


def _nothing_ended(_position: int, _run_id: bytes) -> int:
    return 0


def _no_runs(_runs_max: int) -> list[tuple[bytes, int]]:
    return []


@dataclass(frozen=True, slots=True)
class RecoveredChunk:
    number: int
    used_bytes: int
    totals: Books
    live: Iterable[LiveRun]
    """In order of position; may be read once."""
    ended: Callable[[int, bytes], int] = _nothing_ended
    """The items of the run at this position with this id that ended here (settled, not handed
    over), as bits."""
    newest_runs: Callable[[int], list[tuple[bytes, int]]] = _no_runs
    """Ids and fingerprints of its last runs, at most this many, settled or not, but not lost."""


@dataclass(slots=True)
class Damage:
    """What recovery could not read. All of it is kept in the quarantine."""

    blocks: int = 0
    """Stretches of bytes between good blocks, or before a known end, that hold no whole block."""
    block_bytes: int = 0
    heads: int = 0
    """Chunks whose head had to be rebuilt."""
    torn_tails: int = 0
    """Blocks that were begun and, as far as is known, never acknowledged."""
    mark_bytes: int = 0
    records: int = 0
    """Lines of the record log: what they said about writes is unknown."""
    files: list[str] = field(default_factory=list)
    """Files that could not be used at all."""
    moved_blocks: int = 0
    """Good blocks at a wrong place that were put back."""
    lost_items: int = 0
    """Items newly counted as lost. Earlier losses are in the books."""

    def __bool__(self) -> bool:
        """A torn tail is what a crash leaves; it does not count as damage."""
        damaged = self.blocks or self.heads or self.mark_bytes or self.records
        return bool(damaged or self.files or self.moved_blocks or self.lost_items)

    def as_dict(self) -> dict[str, object]:
        """The non-zero counts, by name."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {f"damaged_{name}": value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Recovered:
    chunks: list[RecoveredChunk]
    base: Books
    recent: dict[bytes, int]
    """Ids and fingerprints of the newest runs, oldest first."""
    damage: Damage
    scanned_bytes: int
    records: list[Record] = field(default_factory=list)


class Located(NamedTuple):
    """Where a run was stored, whatever its state now; the place counts all of its items."""

    place: Place
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A block that is damaged. Its bytes are in the quarantine."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Room:
    """The disk space that upkeep measured."""

    free_bytes: int
    spares: int
    quarantine_bytes: int


class Journal(Protocol):
    def recover(self, recent_max: int, progress: Callable[[int, int], None]) -> Recovered:
        """Called once, before anything else. `progress` gets (chunks done, chunks in all)."""

    def commit(
        self,
        runs: Sequence[tuple[RunHead, bytes]],
        marks: Sequence[ItemMark],
        *,
        durable: bool,
        stages: Sequence[bytes] = (),
        records: Sequence[Record] = (),
    ) -> Committed:
        """Commit thread. Runs are durable on return; `stages` names the stage of each run, empty
        for none. Marks are written; if `durable`, these and all earlier marks are durable as well.
        Records are durable on return, all of them or none."""

    def seal(self) -> Committed:
        """Commit thread. Seals the active chunk, so that it can be freed."""

    def keep_records(self, records: Sequence[Record]) -> None:
        """Commit thread. Replaces the record log: only these records must be remembered."""

    def read(self, places: Sequence[tuple[int, Place]]) -> list[StoredRun | Unreadable]:
        """Reader thread. Reads runs by chunk number and place, in the order asked for.

        Raises OSError if the disk cannot be read for now; this says nothing about the runs.
        """

    def locate(self, run_id: bytes, numbers: Sequence[int]) -> list[Located]:
        """Reader thread. Where runs of this id were stored, according to the indexes of these
        chunks. Raises OSError as `read` does."""

    def look(self) -> Room:
        """Upkeep thread. Measures the free space."""

    def write_indexes(self) -> None:
        """Upkeep thread. Indexes sealed chunks."""

    def prepare(self) -> None:
        """Upkeep thread. Makes the next chunk and the spares ready."""

    def keep_ballast(self) -> None:
        """Upkeep thread. Reserves space for marks on a full disk, if there is some to spare."""

    def free(self, numbers: Sequence[int], base: Books, recent: Mapping[bytes, int]) -> None:
        """Upkeep thread. Makes `base` and the newest runs durable, then recycles these chunks."""

    def write_meta(self, reader: int, writer: int, entries: int, total_bytes: int) -> None:
        """Upkeep thread."""

    def write_draft(self) -> None:
        """Upkeep thread. Records which runs the active chunk has, so that a loss can be counted."""

    def close(self) -> None:
        """Commit thread, last. Seals the active chunk and makes everything durable."""
