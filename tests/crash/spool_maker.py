"""Spools with everything in them, and what they are known to hold.

A spool is made by a journal in two lives. It has chunks that recovery sealed, chunks with an
index, full chunks without one, the chunk that was being written, marks for some of the items,
two checkpoints, spares and ballast.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from actors.config.settings import SpoolSettings
from actors.model.books import Books, Totals
from actors.model.failures import Portions, RetryNote, retried, without
from actors.model.runs import Fate
from actors.ports.journal import ItemMark
from daemon.journal import chunk
from daemon.journal.checkpoint import Meta
from daemon.journal.journal import Journal
from forebay.run import RunHead, encode_run, read_head
from tests.crash.named_files import QuickFiles

KIB: Final = 1024
SETTINGS: Final = SpoolSettings(
    chunk_size=64 * KIB,
    max_bytes=1024 * KIB,
    min_free_bytes=0,
    ballast_bytes=64 * KIB,
    spare_chunks=1,
)
QUEUES: Final = ("north", "south", "west")
ENDS: Final = tuple(fate for fate in Fate if fate is not Fate.RETRY)


@dataclass(frozen=True, slots=True)
class KnownBlock:
    """A block as it was written, and what its marks say."""

    number: int
    position: int
    head: RunHead
    data: bytes
    """The run."""
    raw: bytes
    """The block."""
    done: int
    portions: Portions = ()
    lost_items: int = 0
    """By a mark of the spool as it was made."""

    @property
    def all_done(self) -> bool:
        return self.done == (1 << self.head.count) - 1


@dataclass(slots=True)
class KnownSpool:
    directory: Path
    blocks: dict[int, KnownBlock] = field(default_factory=dict)
    """By position."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """Names, by what the files are."""
    bases: list[Books] = field(default_factory=lambda: [{}])
    """What the checkpoints said, one after the other."""

    @property
    def writer_offset(self) -> int:
        return max(block.position + len(block.raw) for block in self.blocks.values())


def make_spool(rng: Random, directory: Path, first_number: int = 0) -> KnownSpool:
    files = QuickFiles(directory)
    files.create_directory()
    Meta(0, first_number, 0, 0).write(files)
    maker = _Maker(rng, files)
    maker.write_chunks(3)
    maker.crash()
    maker.write_chunks(6, upkeep=True)
    maker.free(2)
    maker.free(1)
    maker.write_chunks(2, upkeep=False)
    maker.mark_some()
    return maker.finish()


def make_run(rng: Random) -> tuple[RunHead, bytes]:
    count = rng.choice((1, 3, 17))
    payloads = [rng.randbytes(rng.randrange(1, 6000 // count)) for _ in range(count)]
    data = encode_run(
        payloads,
        queue=rng.choice(QUEUES),
        priority=rng.choice((0, 5, 10)),
        run_id=rng.randbytes(16),
        enqueued_ms=1,
        compressed=rng.random() < 0.5,
    )
    return read_head(data), data


class _Maker:
    def __init__(self, rng: Random, files: QuickFiles) -> None:
        self._rng = rng
        self._spool = KnownSpool(files.directory)
        self._files = files
        self._journal = self._recovered()
        self._runs: dict[int, tuple[int, int, RunHead, bytes]] = {}
        """By position: number, size, and the run."""
        self._done: dict[int, int] = {}
        self._portions: dict[int, Portions] = {}
        self._lost: dict[int, int] = {}
        self._base: Books = {}
        self._gone_ids: list[bytes] = []
        self._numbers: list[int] = []

    def _recovered(self) -> Journal:
        journal = Journal(self._files, SETTINGS)
        journal.recover(0, lambda done, chunks: None)
        journal.look()
        journal.keep_ballast()
        journal.write_indexes()
        journal.prepare()
        return journal

    def crash(self) -> None:
        self._files.let_go()
        self._journal = self._recovered()

    def write_chunks(self, chunks: int, *, upkeep: bool = True) -> None:
        """Writes until so many chunks have come into use, and a little more."""
        started = 0
        while started < chunks or self._rng.random() < 0.7:
            group = [make_run(self._rng) for _ in range(self._rng.randrange(1, 4))]
            committed = self._journal.commit(group, [], durable=False)
            assert committed.failure is None
            self._numbers += committed.started
            started += len(committed.started)
            placed = zip(committed.positions, committed.sizes, group, strict=True)
            for position, size, (head, data) in placed:
                number = max(number for number in self._numbers if number <= position)
                self._runs[position] = (number, size, head, data)
            if upkeep:
                self._journal.write_indexes()
                self._journal.prepare()

    def free(self, chunks: int) -> None:
        """Settles all that is in the oldest chunks, and frees them."""
        numbers, self._numbers = self._numbers[:chunks], self._numbers[chunks:]
        gone = [position for position, run in self._runs.items() if run[0] in numbers]
        for position in gone:
            self._mark(position, 0, self._runs[position][2].count, Fate.DELIVERED)
            head = self._runs.pop(position)[2]
            self._gone_ids.append(head.run_id)
            totals = self._base.setdefault(head.queue, Totals())
            totals.accepted += head.count
            totals.delivered += head.count
        self._journal.free(numbers, self._base, dict.fromkeys(self._gone_ids, 0))
        self._spool.bases.append(deepcopy(self._base))

    def mark_some(self) -> None:
        for position, (_, _, head, _) in self._runs.items():
            first = self._rng.randrange(head.count)
            match self._rng.randrange(6):
                case 0:
                    self._mark(position, 0, head.count, self._rng.choice(ENDS))
                case 1:
                    self._mark(position, first, first + 1, Fate.DELIVERED)
                case 2:
                    self._mark(position, 0, head.count, Fate.RETRY, RetryNote(1, 5, 4, "refused"))
                    self._mark(position, first, first + 1, Fate.RETRY, RetryNote(2, 7, 6, "é" * 9))
                    self._mark(position, 0, self._rng.randrange(2), Fate.DELIVERED)

    def _mark(
        self, position: int, first: int, last: int, fate: Fate, note: RetryNote | None = None
    ) -> None:
        number, _, head, _ = self._runs[position]
        mark = ItemMark(number, position - number, head.run_id, first, last, fate, note)
        assert self._journal.commit([], [mark], durable=False).marks_failure is None
        bits = (1 << last) - (1 << first)
        portions = self._portions.get(position, ())
        if note is not None:
            self._portions[position] = retried(portions, bits, note)
        else:
            self._done[position] = self._done.get(position, 0) | bits
            if fate is Fate.LOST:
                self._lost[position] = bits.bit_count()
            self._portions[position] = without(portions, bits)

    def finish(self) -> KnownSpool:
        spool = self._spool
        for position, (number, size, head, data) in self._runs.items():
            file = (spool.directory / chunk.chunk_name(number)).read_bytes()
            raw = file[position - number : position - number + size]
            done = self._done.get(position, 0)
            portions, lost = self._portions.get(position, ()), self._lost.get(position, 0)
            spool.blocks[position] = KnownBlock(
                number, position, head, data, raw, done, portions, lost
            )
        self._journal.write_draft()
        live = [block for block in spool.blocks.values() if not block.all_done]
        self._journal.write_meta(
            min(block.number for block in live),
            spool.writer_offset,
            len(live),
            sum(len(block.raw) for block in live),
        )
        chunk.write_spare(self._files, f"{chunk.SPARE_PREFIX}0123456789abcdef", SETTINGS.chunk_size)
        self._files.let_go()
        names = set(self._files.names())
        *sealed, active = self._numbers
        indexed = [number for number in sealed if chunk.index_name(number) in names]
        full = [number for number in sealed if number not in indexed]
        spool.files = {
            "active_chunk": [chunk.chunk_name(active)],
            "full_chunk": [chunk.chunk_name(number) for number in full],
            "indexed_chunk": [chunk.chunk_name(number) for number in indexed],
            "index": [chunk.index_name(number) for number in indexed],
            "draft": [chunk.draft_name(active)],
            "marks": sorted(name for name in names if name.endswith(chunk.MARKS_SUFFIX)),
            "meta": ["spool.meta"],
            "checkpoint": ["checkpoint"],
            "old_checkpoint": ["checkpoint.old"],
            "recent": ["recent"],
            "spare": sorted(name for name in names if name.startswith(chunk.SPARE_PREFIX)),
            "ballast": ["ballast"],
        }
        for kind, found in spool.files.items():
            assert found, f"the spool has no {kind}"
            assert names.issuperset(found)
        return spool
