"""Runs that leave one journal for another keep what they are, and their parts have lasting ids."""

import pytest

from actors.model.slices import InJournal, LentRun, Slice, item_bits
from actors.spooler.moved_runs import fitted, moved_run, part_id
from forebay.ids import new_run_id, run_id_ms
from forebay.run import Run, encode_run, read_run
from forebay.stage_frames import WRITE_HEADER

PAYLOADS = [f"item {at}".encode() * 20 for at in range(100)]
KEYS = [f"k{at}".encode() for at in range(100)]


def run_of(**more: object) -> bytes:
    return encode_run(
        PAYLOADS, queue="crm", keys=KEYS, flow="f", action="a", priority=3, **more  # type: ignore[arg-type]
    )  # fmt: skip


def slice_of(data: bytes, bits: int, attempt: int = 0, due_ms: int = 0) -> Slice:
    lent = LentRun(read_run(data).head, data, InJournal(0, 0))
    return Slice(lent, bits, attempt, due_ms)


def items(run: Run) -> list[tuple[str, bytes, bytes]]:
    return list(zip(run.item_ids(), run.payloads(), run.keys(), strict=True))


def test_a_run_of_which_everything_is_left_is_moved_byte_for_byte() -> None:
    data = run_of(headers={"trace": "t"})
    assert moved_run(slice_of(data, item_bits(0, 100))) == data


def test_a_part_keeps_its_items_ids_and_has_their_attempt_and_due_time() -> None:
    data = run_of(headers={"trace": "t"}, enqueued_ms=5)
    bits = item_bits(10, 20) | item_bits(50, 51)
    moved = read_run(moved_run(slice_of(data, bits, 2, 77)))
    everything = items(read_run(data))
    assert items(moved) == everything[10:20] + everything[50:51]
    head = moved.head
    assert (head.queue, head.flow, head.action, head.priority) == ("crm", "f", "a", 3)
    assert (head.attempt, head.due_ms, head.enqueued_ms) == (2, 77, 5)
    assert head.headers() == {"trace": "t"}
    assert moved_run(slice_of(data, bits, 2, 77)) == bytes(moved.data)


def test_a_part_of_a_part_keeps_the_first_ids() -> None:
    data = run_of()
    first = moved_run(slice_of(data, item_bits(40, 60)))
    second = read_run(moved_run(slice_of(first, item_bits(5, 7))))
    assert items(second) == items(read_run(data))[45:47]


def test_a_run_that_has_failed_as_a_whole_keeps_its_own_id() -> None:
    data = run_of()
    moved = read_run(moved_run(slice_of(data, item_bits(0, 100), 3, 9)))
    assert moved.head.run_id == read_run(data).head.run_id
    assert (moved.head.attempt, moved.head.due_ms) == (3, 9)
    assert items(moved) == items(read_run(data))


def test_a_published_run_and_its_parts_stay_in_their_write() -> None:
    headers = {WRITE_HEADER: "ab" * 16, "kept": "yes"}
    data = run_of(headers=headers)
    assert moved_run(slice_of(data, item_bits(0, 100))) == data
    part = read_run(moved_run(slice_of(data, item_bits(3, 5), 1)))
    assert part.head.headers() == headers
    assert items(part) == items(read_run(data))[3:5]


def test_ids_of_parts_differ_by_run_and_items_and_sort_with_their_run() -> None:
    runs = [new_run_id(), new_run_id()]
    parts = [item_bits(0, 1), item_bits(1, 2), item_bits(0, 4096)]
    made = [part_id(run, bits) for run in runs for bits in parts]
    assert len({*made, *runs}) == 8
    assert [run_id_ms(each) for each in made] == [run_id_ms(run) for run in runs for _ in parts]


@pytest.mark.parametrize("most", [3000, 400, 10])
def test_a_run_that_is_too_long_is_cut_until_it_fits(most: int) -> None:
    run = read_run(run_of())
    parts = [read_run(data) for data in fitted(run, most)]
    assert [item for part in parts for item in items(part)] == items(run)
    assert all(part.head.raw_bytes <= most or part.head.count == 1 for part in parts)
    assert list(fitted(run, 10**9)) == [run.data]
