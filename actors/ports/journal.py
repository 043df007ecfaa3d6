"""What actors need from the outside, as interfaces. Implementations live in `daemon/`.

The journal blocks: each method says on which of the spooler's threads it runs. A call that has
begun is never abandoned by cancellation; the spooler waits for it in a shielded section.
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
    """What became of items of a run in the chunk `number`."""

    number: int
    offset: int
    run_id: bytes | None
    """None: nobody has read the run yet; the journal looks it up."""
    first: int
    last: int
    fate: Fate
    note: RetryNote | None = None
    """Of `Fate.RETRY`."""


@dataclass(slots=True)
class Committed:
    """What a commit did: the first `len(positions)` runs are durable, the rest is not stored."""

    positions: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes on disk, in the order of `positions`."""
    fingerprints: list[int] = field(default_factory=list)
    """Of the runs (actors/spooler/recent.py), in the order of `positions`."""
    started: list[int] = field(default_factory=list)
    """Chunks that came into use, by number."""
    sealed: list[int] = field(default_factory=list)
    """Chunks that take no more runs."""
    failure: Refused | None = None
    """Why the rest was not stored."""
    marks_failure: OSError | None = None
    """The marks of this commit are not written and must come again. No mark is written when a
    run was not stored: the mark may be about the run that was to make room for it."""
    abandoned: list[tuple[int, OSError]] = field(default_factory=list)
    """Chunks given up because a write or a sync failed."""
    records_failure: Refused | None = None
    """Why the records of this commit are not stored: none of them is."""


class LiveRun(NamedTuple):
    """A run of `items` items that was found on disk, not all of them settled."""

    position: int
    size: int
    items: int
    account: str
    priority: int
    due_ms: int
    done: int
    """A bit for each item that is settled."""
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
    """In the order of their positions; may be read once."""
    ended: Callable[[int, bytes], int] = _nothing_ended
    """Of the run at this position with this id, the items that met their end here: settled, and
    not handed over. A bit each."""
    newest_runs: Callable[[int], list[tuple[bytes, int]]] = _no_runs
    """Ids and fingerprints of its last runs, at most this many, settled or not, without those that
    are lost."""


@dataclass(slots=True)
class Damage:
    """What recovery could not read. All of it is kept in the quarantine."""

    blocks: int = 0
    """Stretches of bytes between good blocks, or before a known end, that hold no whole block."""
    block_bytes: int = 0
    heads: int = 0
    """Chunks whose head had to be made anew."""
    torn_tails: int = 0
    """Blocks that were begun and never acknowledged, as far as anyone can tell."""
    mark_bytes: int = 0
    records: int = 0
    """Lines of the record log: what they said of writes is not known."""
    files: list[str] = field(default_factory=list)
    """Files that could not be used at all."""
    moved_blocks: int = 0
    """Good blocks that stood at a wrong place and were put back."""
    lost_items: int = 0
    """Items that were counted as lost now. Earlier losses are in the books."""

    def __bool__(self) -> bool:
        """A torn tail is what a crash leaves, and no damage."""
        damaged = self.blocks or self.heads or self.mark_bytes or self.records
        return bool(damaged or self.files or self.moved_blocks or self.lost_items)

    def as_dict(self) -> dict[str, object]:
        """What there is of it, by name."""
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
    """Where a run was stored, whatever has become of it; the place counts all of its items."""

    place: Place
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A block that is no longer whole. Its bytes are in the quarantine."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Room:
    """What upkeep saw of the disk."""

    free_bytes: int
    spares: int
    quarantine_bytes: int


class Journal(Protocol):
    def recover(self, recent_max: int, progress: Callable[[int, int], None]) -> Recovered:
        """Before anything else, once. `progress` gets (chunks done, chunks in all)."""

    def commit(
        self,
        runs: Sequence[tuple[RunHead, bytes]],
        marks: Sequence[ItemMark],
        *,
        durable: bool,
        stages: Sequence[bytes] = (),
        records: Sequence[Record] = (),
    ) -> Committed:
        """Commit thread. Runs are durable on return; `stages` says for each run in which stage it
        is, empty for none. Marks are written; if `durable`, these and all that were written before
        are durable as well. Records are durable on return, all of them or none."""

    def seal(self) -> Committed:
        """Commit thread. The active chunk takes no more runs, so that it can be freed."""

    def keep_records(self, records: Sequence[Record]) -> None:
        """Commit thread. These are all that need be remembered."""

    def read(self, places: Sequence[tuple[int, Place]]) -> list[StoredRun | Unreadable]:
        """Reader thread. Runs by chunk number and place, in the order asked for.

        OSError if the disk cannot be read for now; nothing is known of the runs then.
        """

    def locate(self, run_id: bytes, numbers: Sequence[int]) -> list[Located]:
        """Reader thread. Where runs of this id were stored, as far as the indexes of these chunks
        know. OSError as with `read`."""

    def look(self) -> Room:
        """Upkeep thread. How much room there is."""

    def write_indexes(self) -> None:
        """Upkeep thread. Indexes sealed chunks."""

    def prepare(self) -> None:
        """Upkeep thread. Makes the next chunk and the spares ready."""

    def keep_ballast(self) -> None:
        """Upkeep thread. Sets room aside for marks on a full disk, if there is some to spare."""

    def free(self, numbers: Sequence[int], base: Books, recent: Mapping[bytes, int]) -> None:
        """Upkeep thread. Makes `base` and what is known of the newest runs durable, then recycles
        these chunks."""

    def write_meta(self, reader: int, writer: int, entries: int, total_bytes: int) -> None:
        """Upkeep thread."""

    def write_draft(self) -> None:
        """Upkeep thread. Notes which runs the active chunk has, so that a loss can be counted."""

    def close(self) -> None:
        """Commit thread, last. Seals the active chunk and makes everything durable."""
