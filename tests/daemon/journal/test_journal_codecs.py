"""The small files of the journal: what is written is read, and what is damaged is noticed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.model.books import Totals
from actors.model.failures import RetryNote
from actors.model.runs import Fate
from actors.model.slices import ERROR_TEXT_MAX
from actors.spooler.intake import fingerprint
from daemon.journal import block, chunk
from daemon.journal.block import Block, Gap, Scanner
from daemon.journal.checkpoint import Checkpoint, Meta, read_checkpoint, read_meta
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from daemon.journal.marks import RECORD_BYTES, Mark, pack_marks, unpack_marks
from forebay.item import FAILURE_REASONS
from tests.actors.spooler.spooling import make_run

NUMBER = 0x40000


def block_at(offset: int, data: bytes) -> bytes:
    return block.frame(data, NUMBER + offset, snappy=False) + data


def scan(data: bytes, number: int = NUMBER) -> tuple[list[Block | Gap], Scanner]:
    scanner = Scanner(lambda length, at: data[at : at + length], number, len(data), 0)
    return list(scanner), scanner


def blocks_of(*runs: bytes) -> bytes:
    data = b""
    for run in runs:
        data += block_at(len(data), run)
    return data


RUNS = [make_run(items=count, size=50)[1] for count in (1, 2, 3)]


def test_scanner_finds_all_blocks() -> None:
    found, scanner = scan(blocks_of(*RUNS) + bytes(500))
    assert [entry.head.count for entry in found if isinstance(entry, Block)] == [1, 2, 3]
    assert scanner.torn_bytes == 0


def test_block_of_a_former_life_is_not_taken_for_a_new_one() -> None:
    found, _ = scan(blocks_of(*RUNS), number=NUMBER + (1 << 33))
    assert found == []


@given(st.integers(0, len(blocks_of(*RUNS)) - 1), st.integers(1, 255))
def test_flipped_byte_costs_one_block_alone(at: int, flip: int) -> None:
    data = bytearray(blocks_of(*RUNS))
    data[at] ^= flip
    sizes = [block.HEAD_BYTES + len(run) for run in RUNS]
    hit = 0 if at < sizes[0] else 1 if at < sizes[0] + sizes[1] else 2
    found, _ = scan(bytes(data) + bytes(100))
    counts = [entry.head.count for entry in found if isinstance(entry, Block)]
    assert counts == [count for count in (1, 2, 3) if count != hit + 1]


@given(st.integers(0, len(blocks_of(*RUNS))), st.binary(min_size=1, max_size=40))
def test_inserted_bytes_move_blocks_and_lose_at_most_one(at: int, inserted: bytes) -> None:
    data = blocks_of(*RUNS)
    found, _ = scan(data[:at] + inserted + data[at:])
    blocks = [entry for entry in found if isinstance(entry, Block)]
    assert len(blocks) >= 2
    for entry in blocks:
        assert entry.position - NUMBER == entry.offset or entry.offset > at


def test_block_that_was_begun_is_seen_as_torn() -> None:
    whole = blocks_of(*RUNS)
    data = whole[:-10] + bytes(10)
    _, scanner = scan(data)
    assert scanner.torn_bytes == block.HEAD_BYTES + len(RUNS[2])


WHERE = (
    st.integers(0, 2**32 - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 4096),
    st.integers(0, 0xFFFF),
)
NOTES = st.builds(
    RetryNote,
    st.integers(0, 0xFFFF),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.text(max_size=ERROR_TEXT_MAX),
    st.sampled_from(FAILURE_REASONS),
    st.none(),
)


@given(
    st.lists(
        st.builds(Mark, *WHERE, st.sampled_from(sorted(set(Fate) - {Fate.RETRY})))
        | st.builds(Mark, *WHERE, st.just(Fate.RETRY), NOTES)
    )
)
def test_marks_are_read_as_written(marks: list[Mark]) -> None:
    assert unpack_marks(NUMBER, pack_marks(NUMBER, marks)) == (marks, 0)


def test_marks_of_another_chunk_do_not_count() -> None:
    data = pack_marks(NUMBER, [Mark(64, bytes(16), 0, 1, Fate.DELIVERED)])
    assert unpack_marks(NUMBER + 1, data) == ([], RECORD_BYTES)


@given(st.integers(0, 3 * RECORD_BYTES - 1), st.integers(1, 255))
def test_damaged_mark_costs_itself_alone(at: int, flip: int) -> None:
    marks = [Mark(offset, bytes(16), 0, 1, Fate.DELIVERED) for offset in (64, 128, 192)]
    data = bytearray(pack_marks(NUMBER, marks))
    data[at] ^= flip
    found, lost = unpack_marks(NUMBER, bytes(data))
    assert found == [mark for order, mark in enumerate(marks) if order != at // RECORD_BYTES]
    assert lost == RECORD_BYTES


def index_of_runs() -> ChunkIndex:
    index = ChunkIndex(NUMBER)
    for order, queue in enumerate(["a", "b", "a"]):
        head, data = make_run(queue, items=order + 1, priority=order, due_ms=order * 1000)
        index.add(64 + order * 200, len(data), head, fingerprint(head, data))
    return index


def test_index_is_read_as_written() -> None:
    written = index_of_runs()
    unpacked = unpack_index(written.pack(700, 1000), NUMBER, 1000)
    assert unpacked is not None
    index, used = unpacked
    assert used == 700
    assert index.accounts == ["a", "b"]
    for name in (
        "offsets",
        "sizes",
        "counts",
        "account_numbers",
        "priorities",
        "due_ms",
        "run_ids",
    ):
        assert getattr(index, name) == getattr(written, name), name
    assert index.room() == 0xFFFF - 2


@given(st.data())
def test_damaged_index_is_not_used(data: st.DataObject) -> None:
    packed = bytearray(index_of_runs().pack(700, 1000))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    assert unpack_index(bytes(packed), NUMBER, 1000) is None
    assert unpack_index(bytes(packed[:at]), NUMBER, 1000) is None


def test_index_of_another_chunk_or_size_is_not_used() -> None:
    packed = index_of_runs().pack(700, 1000)
    assert unpack_index(packed, NUMBER + 1, 1000) is None
    assert unpack_index(packed, NUMBER, 999) is None


def test_chunk_head_is_read_as_written_and_damage_noticed() -> None:
    head = chunk.ChunkHead(NUMBER, 1 << 20, 77, 123)
    packed = head.pack()
    assert len(packed) == chunk.HEAD_BYTES
    assert chunk.read_chunk_head(packed) == head
    for at in range(44):
        damaged = bytearray(packed)
        damaged[at] ^= 1
        assert chunk.read_chunk_head(bytes(damaged)) is None


@pytest.mark.parametrize(
    "name", ["0.chunk", "00000000000000zz.chunk", "000000000000000A.chunk", "0" * 16 + ".index"]
)
def test_names_that_are_no_chunks(name: str) -> None:
    assert chunk.number_in(name, chunk.SUFFIX) is None


def test_meta_is_read_as_written_and_nonsense_is_none(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert read_meta(files) is None
    meta = Meta(1, 2, 3, 4)
    meta.write(files)
    assert read_meta(files) == meta
    for nonsense in (
        b"",
        b"{",
        b"[]",
        b'{"version":1}',
        b'{"version":1,"reader_offset":-1}',
        b"\xff",
    ):
        (tmp_path / "spool.meta").write_bytes(nonsense)
        assert read_meta(files) is None


def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    files = Files(tmp_path)
    first = Checkpoint(1, 100, [1], {"q": Totals(accepted=5, delivered=5)})
    second = Checkpoint(2, 200, [], {"q": Totals(accepted=9, delivered=9)})
    first.write(files)
    second.write(files)
    assert read_checkpoint(files) == (second, [])
    data = (tmp_path / "checkpoint").read_bytes()
    (tmp_path / "checkpoint").write_bytes(data.replace(b"9", b"8", 1))
    assert read_checkpoint(files) == (first, ["checkpoint"])


def test_crash_between_the_two_renames_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    files = Files(tmp_path)
    Checkpoint(1, 100, [], {}).write(files)
    files.rename("checkpoint", "checkpoint.old")
    assert read_checkpoint(files)[0].sequence == 1
