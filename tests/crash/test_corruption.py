"""Damage in every kind of spool file: it starts, loses only the blocks that were hit, says so,
keeps what it could not read, and goes on.
"""

import os
import shutil
from pathlib import Path
from random import Random
from typing import Final

import pytest
import trio
from structlog.testing import capture_logs

from daemon.journal import chunk
from daemon.journal.marks import RECORD_BYTES
from tests.actors.spooler.spooling import running_spooler
from tests.crash.damage import DAMAGES, part_of
from tests.crash.examine import Examined, Judge, examine, store_more
from tests.crash.named_files import QuickFiles
from tests.crash.seeds import EFFORT, seeded
from tests.crash.spool_maker import QUEUES, KnownSpool, make_spool

CASES: Final = 1 if EFFORT == 1 else 2 * EFFORT
"""Of each damage to each kind of file: 84 in all, 672 in `make test-all`, and those below."""
SPOOLS: Final = 3
KINDS: Final = (
    "active_chunk",
    "full_chunk",
    "indexed_chunk",
    "index",
    "draft",
    "marks",
    "meta",
    "checkpoint",
    "old_checkpoint",
    "recent",
    "spare",
    "ballast",
)
RECORD_RUN_ID_AT: Final = 12
CHUNKS: Final = ("active_chunk", "full_chunk", "indexed_chunk")


@pytest.fixture(scope="module")
def spools(tmp_path_factory: pytest.TempPathFactory) -> list[KnownSpool]:
    with capture_logs():
        return [
            make_spool(seeded("corruption", number), tmp_path_factory.mktemp("spool") / "spool")
            for number in range(SPOOLS)
        ]


class Case:
    """One damaged copy of a spool."""

    def __init__(self, rng: Random, spools: list[KnownSpool], directory: Path, kind: str) -> None:
        self.rng = rng
        self.spool = rng.choice(spools)
        self.kind = kind
        self.directory = directory
        shutil.copytree(self.spool.directory, directory)
        self.name = rng.choice(self.spool.files[kind])
        self.path = directory / self.name
        self.meta_is_good = kind != "meta"
        if kind != "meta" and rng.random() < 0.3:
            self.meta_is_good = False
            (directory / "spool.meta").unlink()

    def check(self, foreign: KnownSpool | None = None) -> Examined:
        """Recovers twice and stores more; all of what must hold, holds."""
        number = chunk.number_in(self.name, chunk.MARKS_SUFFIX)
        judge = Judge(self.spool, self.directory, frozenset(() if number is None else (number,)))
        missed = judge.must_be_missed(meta_is_good=self.meta_is_good)
        with capture_logs() as events:
            first = examine(self.directory)
        judge.check(first, foreign)
        if foreign is None and self.kind != "marks":
            judge.check_loss(first)
        if self.kind != "checkpoint":
            assert first.base == self.spool.bases[-1]
        unreadable = first.live.keys() - first.runs.keys()
        assert unreadable <= judge.hit
        if foreign is not None:
            # Nobody can know what stood in the place of another spool's chunk.
            missed &= unreadable
        if missed - unreadable:
            assert first.damage, "blocks are lost, and nobody says so"
            assert any(event["log_level"] == "warning" for event in events)
        kept = [path.read_bytes() for path in (self.directory / "quarantine").iterdir()]
        for position in missed:
            left = [judge.remains(position)] if position in unreadable else judge.left_of(position)
            assert all(any(part in content for content in kept) for part in left if part)

        with capture_logs():
            second = examine(self.directory)
        assert not second.damage, f"found again: {second.damage}"
        assert (second.live, second.runs) == (first.live, first.runs)
        books = (first.accepted_items, first.lost_items)
        assert (second.accepted_items, second.lost_items) == books

        with capture_logs():
            more = store_more(self.directory, self.rng)
            third = examine(self.directory)
        if self.meta_is_good or self.kind != "active_chunk":
            assert not more.keys() & self.spool.blocks.keys(), "a position is used twice"
        assert third.runs == first.runs | more
        return first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_loses_only_what_it_hits(
    how: str, kind: str, spools: list[KnownSpool], tmp_path: Path
) -> None:
    for number in range(CASES):
        rng = seeded("corruption", kind, how, number)
        case = Case(rng, spools, tmp_path / f"{number}", kind)
        before = case.path.read_bytes()
        start, end = part_of(len(before), rng)
        print(f"{how} {start} to {end} of {case.name}, {len(before)} bytes")
        case.path.write_bytes(DAMAGES[how](before, start, end, rng))
        case.check()
        shutil.rmtree(case.directory)


@pytest.mark.parametrize("how", ["flip", "flip_one_bit", "cut_out", "zero", "duplicate"])
def test_damage_in_a_chunks_head_loses_nothing(
    how: str, spools: list[KnownSpool], tmp_path: Path
) -> None:
    for number in range(CASES):
        rng = seeded("head", how, number)
        case = Case(rng, spools, tmp_path / f"{number}", rng.choice(CHUNKS))
        before = case.path.read_bytes()
        start, end = part_of(64, rng)
        print(f"{how} {start} to {end} of {case.name}")
        damaged = DAMAGES[how](before[:64], start, end, rng) + before[64:]
        case.path.write_bytes(damaged)
        first = case.check()
        assert len(first.runs) == sum(not block.all_done for block in case.spool.blocks.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["deleted", "emptied", "garbage"])
def test_file_that_is_gone_or_garbage(
    how: str, kind: str, spools: list[KnownSpool], tmp_path: Path
) -> None:
    for number in range(min(2, CASES)):
        rng = seeded("whole file", kind, how, number)
        case = Case(rng, spools, tmp_path / f"{number}", kind)
        print(f"{case.name} is {how}")
        match how:
            case "deleted":
                case.path.unlink()
            case "emptied":
                case.path.write_bytes(b"")
            case _:
                case.path.write_bytes(rng.randbytes(rng.choice((1, 100, 70_000))))
        case.check()


def test_mark_with_a_wrong_bit_settles_nothing(spools: list[KnownSpool], tmp_path: Path) -> None:
    """Each bit of one record that settles a part of a run: nothing else may be settled by it."""
    rng = seeded("marks")
    spool = rng.choice(spools)
    block = rng.choice([block for block in spool.blocks.values() if 0 < block.done.bit_count() < 2])
    name = chunk.marks_name(block.number)
    data = (spool.directory / name).read_bytes()
    start = data.index(block.head.run_id) - RECORD_RUN_ID_AT
    for bit in range(RECORD_BYTES * 8):
        print(f"bit {bit} of the record at {start} of {name}")
        directory = tmp_path / f"{bit}"
        directory.mkdir()
        shutil.copy(spool.directory / chunk.chunk_name(block.number), directory)
        damaged = bytearray(data)
        damaged[start + bit // 8] ^= 1 << bit % 8
        (directory / name).write_bytes(damaged)
        with capture_logs():
            found = examine(directory)
        assert found.live[block.position].done == 0
        for position, other in spool.blocks.items():
            if other.number == block.number and position != block.position:
                assert (position not in found.live) == other.all_done
                assert other.all_done or found.live[position].done == other.done


@pytest.mark.parametrize("number", range(8 * EFFORT))
async def test_what_rots_under_an_index_is_counted_as_lost(
    number: int, spools: list[KnownSpool], tmp_path: Path
) -> None:
    """Recovery trusts an index, and does not see it; whoever reads the run does."""
    rng = seeded("rot", number)
    case = Case(rng, spools, tmp_path / "spool", "indexed_chunk")
    how = rng.choice(["flip", "flip_one_bit", "zero", "copy_over"])
    before = case.path.read_bytes()
    start, end = part_of(len(before), rng)
    print(f"{how} {start} to {end} of {case.name}, {len(before)} bytes")
    case.path.write_bytes(DAMAGES[how](before, start, end, rng))
    judge = Judge(case.spool, case.directory, frozenset())
    live = [block for block in case.spool.blocks.values() if not block.all_done]
    rotten = [block for block in live if block.position in judge.hit]
    good = {block.position: block.data for block in live if block.position in judge.whole}

    with capture_logs() as events:
        async with running_spooler(case.directory, QuickFiles(case.directory)) as desk:
            base = (await desk.stats())["daemon"]
            lent: dict[int, bytes] = {}

            async def take_all(queue: str) -> None:
                while True:
                    leases = await desk.take(queue)
                    lent.update({lease.run.position: lease.run.data for lease in leases})
                    await desk.settle(*leases)

            async with trio.open_nursery() as nursery:
                for queue in QUEUES:
                    nursery.start_soon(take_all, queue)
                drained = await desk.until(lambda report: not report["daemon"]["held"])
                report = drained["daemon"]
                nursery.cancel_scope.cancel()
    assert lent == good
    items = sum(block.head.count - block.done.bit_count() for block in rotten)
    assert report["lost"] == base["lost"] + items
    assert report["accepted"] == base["accepted"]
    ends = ("delivered", "dropped", "deleted", "lost", "handed_over", "moved_out")
    assert report["accepted"] == sum(report[end] for end in ends)
    dropped = [event for event in events if event["event"] == "spooler.block_unreadable"]
    assert sorted(event["position"] for event in dropped) == sorted(
        block.position for block in rotten
    )
    kept = [path.read_bytes() for path in (case.directory / "quarantine").iterdir()]
    for block in rotten:
        assert any(judge.remains(block.position) in content for content in kept)

    with capture_logs():
        async with running_spooler(case.directory, QuickFiles(case.directory)) as desk:
            again = (await desk.stats())["daemon"]
    assert again == report


def test_hints_are_only_hints(spools: list[KnownSpool], tmp_path: Path) -> None:
    """Without any index, meta file, checkpoint, spare and ballast everything is found."""
    rng = seeded("hints")
    case = Case(rng, spools, tmp_path / "spool", "checkpoint")
    for kind in (
        "index",
        "draft",
        "meta",
        "checkpoint",
        "old_checkpoint",
        "recent",
        "spare",
        "ballast",
    ):
        for name in case.spool.files[kind]:
            (case.directory / name).unlink()
    first = case.check()
    assert len(first.runs) == sum(not block.all_done for block in case.spool.blocks.values())
    assert not first.damage


@pytest.mark.parametrize("kind", CHUNKS)
def test_chunk_that_was_renamed_gets_its_name_back(
    kind: str, spools: list[KnownSpool], tmp_path: Path
) -> None:
    for number, name in enumerate(("ffff", "0000000000000001", "00000000fedc0000")):
        case = Case(seeded("rename", kind, number), spools, tmp_path / f"{number}", kind)
        case.path.rename(case.directory / f"{name:0>16}.chunk")
        first = case.check()
        assert len(first.runs) == sum(not block.all_done for block in case.spool.blocks.values())
        assert case.path.exists()


def test_chunks_that_changed_names_with_each_other(
    spools: list[KnownSpool], tmp_path: Path
) -> None:
    case = Case(seeded("swap"), spools, tmp_path / "spool", "full_chunk")
    other = case.directory / case.spool.files["active_chunk"][0]
    case.path.rename(case.directory / "between")
    other.rename(case.path)
    (case.directory / "between").rename(other)
    first = case.check()
    assert len(first.runs) == sum(not block.all_done for block in case.spool.blocks.values())


def test_second_copy_of_a_chunk_is_set_aside(spools: list[KnownSpool], tmp_path: Path) -> None:
    for kind in CHUNKS:
        case = Case(seeded("copy", kind), spools, tmp_path / kind, kind)
        shutil.copy(case.path, case.directory / f"{'fedc0000':0>16}.chunk")
        first = case.check()
        assert first.damage.files == ["00000000fedc0000.chunk"]


@pytest.mark.parametrize("kind", CHUNKS)
def test_chunk_of_another_spool_is_taken_in(
    kind: str, spools: list[KnownSpool], tmp_path: Path
) -> None:
    """Nothing that is whole is discarded: its runs are delivered here."""
    rng = seeded("foreign", kind)
    with capture_logs():
        foreign = make_spool(rng, tmp_path / "foreign", first_number=1 << 30)
    case = Case(rng, spools, tmp_path / "spool", "meta")
    number = chunk.number_in(foreign.files[kind][0], chunk.SUFFIX)
    shutil.copy(foreign.directory / foreign.files[kind][0], case.directory)
    first = case.check(foreign)
    assert not first.damage
    assert {block.position for block in foreign.blocks.values() if block.number == number} == {
        position for position in first.runs if position >= 1 << 30
    }


@pytest.mark.parametrize("kind", CHUNKS)
def test_chunk_of_another_spool_in_the_place_of_an_own_one(
    kind: str, spools: list[KnownSpool], tmp_path: Path
) -> None:
    rng = seeded("replaced", kind)
    with capture_logs():
        foreign = make_spool(rng, tmp_path / "foreign")
    case = Case(rng, spools, tmp_path / "spool", kind)
    names = [name for own in CHUNKS for name in case.spool.files[own]]
    shared = [name for name in names if (foreign.directory / name).exists()]
    case.name = case.name if case.name in shared else rng.choice(shared)
    shutil.copy(foreign.directory / case.name, case.directory)
    case.check(foreign)


def test_unknown_files_are_left_alone(spools: list[KnownSpool], tmp_path: Path) -> None:
    case = Case(seeded("unknown"), spools, tmp_path / "spool", "meta")
    strangers = ("README", "core.1234", "0.chunk", "x.index", "0000000000000000.marks.bak", ".nfs1")
    for name in strangers:
        (case.directory / name).write_bytes(os.urandom(100))
    (case.directory / "00000000fedc0000.chunk").mkdir()
    (case.directory / "lost+found").mkdir()
    (case.directory / f"{'fedd0000':0>16}.chunk").symlink_to("nowhere")
    first = case.check()
    assert not first.damage
    assert all((case.directory / name).exists() for name in strangers)


def test_link_in_the_place_of_a_chunk_is_not_followed(
    spools: list[KnownSpool], tmp_path: Path
) -> None:
    case = Case(seeded("link"), spools, tmp_path / "spool", "full_chunk")
    outside = tmp_path / "outside"
    case.path.rename(outside)
    case.path.symlink_to(outside)
    before = outside.read_bytes()
    number = chunk.number_in(case.name, chunk.SUFFIX)
    with capture_logs():
        found = examine(case.directory)
    assert not [at for at in found.runs if case.spool.blocks[at].number == number]
    assert outside.read_bytes() == before


def test_file_in_the_place_of_the_quarantine(spools: list[KnownSpool], tmp_path: Path) -> None:
    case = Case(seeded("quarantine"), spools, tmp_path / "spool", "full_chunk")
    shutil.rmtree(case.directory / "quarantine")
    (case.directory / "quarantine").write_bytes(b"somebody's")
    case.path.write_bytes(DAMAGES["zero"](case.path.read_bytes(), 1000, 2000, case.rng))
    case.check()
    (kept,) = case.directory.glob("quarantine-*")
    assert kept.read_bytes() == b"somebody's"
