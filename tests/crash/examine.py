"""What a recovery makes of a damaged spool, against what the spool is known to hold."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from actors.model.books import Books, total
from actors.model.runs import Place, StoredRun
from actors.ports.journal import Damage, LiveRun
from daemon.journal import chunk
from daemon.journal.block import HEAD_BYTES as BLOCK_HEAD_BYTES
from daemon.journal.journal import Journal
from tests.crash.named_files import QuickFiles
from tests.crash.spool_maker import SETTINGS, KnownBlock, KnownSpool, make_run


@dataclass(slots=True)
class Examined:
    """A recovered spool: its live runs by position, and those of them that can be read."""

    damage: Damage
    base: Books
    live: dict[int, LiveRun] = field(default_factory=dict)
    runs: dict[int, bytes] = field(default_factory=dict)
    held_items: int = 0
    """As the books have it."""
    accepted_items: int = 0
    """The same, of the chunks that are there."""
    lost_items: int = 0


def examine(directory: Path) -> Examined:
    """Recovers, reads every live run, stores new ones, and lets go without closing."""
    files = QuickFiles(directory)
    try:
        journal = Journal(files, SETTINGS)
        recovered = journal.recover(100, lambda done, chunks: None)
        examined = Examined(recovered.damage, recovered.base)
        for found in recovered.chunks:
            totals = total(found.totals)
            examined.held_items += totals.held
            examined.accepted_items += totals.accepted
            examined.lost_items += totals.lost
            for live in found.live:
                assert live.position not in examined.live
                examined.live[live.position] = live
                (run,) = journal.read([(found.number, live.place)])
                if isinstance(run, StoredRun):
                    examined.runs[live.position] = run.data
        return examined
    finally:
        files.let_go()


def store_more(directory: Path, rng: Random) -> dict[int, bytes]:
    """Recovers, commits a few runs, reads them back; the runs by position."""
    files = QuickFiles(directory)
    try:
        journal = Journal(files, SETTINGS)
        journal.recover(100, lambda done, chunks: None)
        journal.look()
        runs = [make_run(rng) for _ in range(20)]
        committed = journal.commit(runs, [], durable=True)
        assert committed.failure is None
        wanted = []
        for position, size in zip(committed.positions, committed.sizes, strict=True):
            number = max(number for number in committed.started if number <= position)
            wanted.append((number, Place(position, size, 1)))
        for (_, data), read in zip(runs, journal.read(wanted), strict=True):
            assert isinstance(read, StoredRun)
            assert read.data == data
        return {
            position: data for position, (_, data) in zip(committed.positions, runs, strict=True)
        }
    finally:
        files.let_go()


class Judge:
    """Holds a damaged spool against the spool that it was.

    A block is whole as long as its bytes stand anywhere in a chunk file; where recovery trusts an
    index, at their place. `marks_hit` are the chunks whose marks were damaged: there, and only
    there, settled items may come back.
    """

    def __init__(self, spool: KnownSpool, directory: Path, marks_hit: frozenset[int]) -> None:
        self._spool = spool
        self._directory = directory
        self._marks_hit = marks_hit
        self._contents = {
            path.name: path.read_bytes() for path in directory.glob("*.chunk") if path.is_file()
        }
        self.whole = {position for position, block in spool.blocks.items() if self._is_whole(block)}
        self.hit = spool.blocks.keys() - self.whole
        self._listed = {at for at, block in spool.blocks.items() if self._is_listed(block)}

    def _is_whole(self, block: KnownBlock) -> bool:
        if self._index_is_trusted(block.number):
            return self.remains(block.position) == block.raw
        return any(block.raw in content for content in self._contents.values())

    def _index_is_trusted(self, number: int) -> bool:
        index = self._directory / chunk.index_name(number)
        original = self._spool.directory / chunk.index_name(number)
        content = self._contents.get(chunk.chunk_name(number))
        return (
            content is not None
            and len(content) == (self._spool.directory / chunk.chunk_name(number)).stat().st_size
            and index.exists()
            and index.read_bytes() == original.read_bytes()
        )

    def check(self, found: Examined, foreign: KnownSpool | None = None) -> None:
        known = dict(self._spool.blocks)
        known_foreign = set() if foreign is None else set(foreign.blocks)
        if foreign is not None:
            known |= {
                position: block
                for position, block in foreign.blocks.items()
                if position not in self.whole
            }
        for position, data in found.runs.items():
            assert data == known[position].data
        for position in self.whole:
            self._check_whole(self._spool.blocks[position], found.live.get(position), found)
        for position in self.hit - known_foreign:
            assert position not in found.runs
        items = sum(live.items - live.done.bit_count() for live in found.live.values())
        assert found.held_items == items
        assert found.base in self._spool.bases, "the books tell what never was"

    def _check_whole(self, block: KnownBlock, live: LiveRun | None, found: Examined) -> None:
        where = f"the run at {block.position - block.number} of {chunk.chunk_name(block.number)}"
        if block.number in self._marks_hit:
            if live is not None:
                assert live.done & ~block.done == 0, f"items of {where} are lost"
            else:
                assert block.all_done, f"{where} is lost"
        elif block.all_done:
            assert live is None, f"{where} has come back"
        else:
            assert live is not None, f"{where} is lost"
            assert live.done == block.done
            assert live.portions == block.portions, f"{where} forgot what has failed"
        assert live is None or block.position in found.runs, f"{where} cannot be read"

    def must_be_missed(self, *, meta_is_good: bool) -> set[int]:
        """Live blocks that were hit and of which recovery, or reading, can know.

        What was hit at the end of a chunk without an index looks as what a crash leaves, or as
        bytes of a former life, unless the meta file tells how far that chunk was written.
        """
        missed = set()
        for position in self.hit:
            block = self._spool.blocks[position]
            has_index = (self._directory / chunk.index_name(block.number)).exists()
            has_follower = any(
                other > position and self._spool.blocks[other].number == block.number
                for other in self.whole
            )
            is_active = chunk.chunk_name(block.number) in self._spool.files["active_chunk"]
            is_known = has_index or has_follower or (is_active and meta_is_good)
            if is_known and not block.all_done:
                missed.add(position)
        return missed

    def check_loss(self, found: Examined) -> None:
        """What an index or a draft knew is in the books, whole or not; and nothing that never was.
        Where all of the spool is known, the books are exact."""
        blocks = self._spool.blocks
        known = self.whole | self._listed
        lost = {at: block.lost_items for at, block in blocks.items()}
        for at in self.hit - found.live.keys():
            lost[at] += blocks[at].head.count - blocks[at].done.bit_count()
        assert sum(lost[at] for at in known) <= found.lost_items <= sum(lost.values())
        counts = {at: block.head.count for at, block in blocks.items()}
        least = sum(counts[at] for at in known)
        assert least <= found.accepted_items <= sum(counts.values())

    def _is_listed(self, block: KnownBlock) -> bool:
        names = chunk.index_name(block.number), chunk.draft_name(block.number)
        paths = [self._directory / name for name in names]
        return any(
            path.exists() and path.read_bytes() == (self._spool.directory / path.name).read_bytes()
            for path in paths
        )

    def remains(self, position: int) -> bytes:
        """What stands at the place of a block."""
        block = self._spool.blocks[position]
        content = self._contents.get(chunk.chunk_name(block.number), b"")
        start = block.position - block.number
        return content[start : start + len(block.raw)]

    def left_of(self, position: int) -> list[bytes]:
        """The bytes of a block's chunk, if it was hit, that belong to no whole block.

        What follows the last whole block looks as if it was never written, unless a block's head
        is left of it.
        """
        number = self._spool.blocks[position].number
        content = self._contents.get(chunk.chunk_name(number), b"")
        left = []
        end = chunk.HEAD_BYTES
        for start, size in sorted(self._places(content)):
            left.append(content[end:start])
            end = max(end, start + size)
        head = self._spool.blocks[position].raw[:BLOCK_HEAD_BYTES]
        if content[end:].startswith(head):
            left.append(content[end : end + len(self._spool.blocks[position].raw)])
        return left

    def _places(self, content: bytes) -> Iterator[tuple[int, int]]:
        """Where whole blocks stand in a file, copies included, and their sizes."""
        for position in self.whole:
            raw = self._spool.blocks[position].raw
            at = content.find(raw)
            while at >= 0:
                yield at, len(raw)
                at = content.find(raw, at + 1)
