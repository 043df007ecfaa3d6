"""Items that leave one journal for another, as runs that a daemon takes when they are pushed.

A run of which everything is left is moved as it is, under its own id: whoever has it already
answers DUPLICATE. What is left of a run in parts (some items are settled, or have failed and are
tried again later) becomes a run for each part. A part's id is made from the run's id and from the
items in it, and so is the same each time that the same part is moved. Items keep their ids.

A run of a write stays in it: its header says so, and its new owner counts it in the receipt.

Plain functions. What they can't do: carry the texts of errors, for which a run has no place.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

from actors.model.slices import Slice, first_bits, indexes, item_bits
from forebay.encode import encode_run
from forebay.ids import RUN_ID_BYTES
from forebay.run import IDS, KEYS, Run, read_run

BITS_BYTES: Final = 512
TIME_BYTES: Final = 6
"""Of a UUIDv7: when it was made, by which runs of one priority are in order."""


def moved_run(slice_: Slice) -> bytes:
    """A run of these items alone. BadRun if the body cannot be unpacked, where that is needed."""
    head = slice_.run.head
    is_whole = slice_.bits == item_bits(0, head.count)
    is_same = slice_.attempt == head.attempt and slice_.due_ms == head.due_ms
    if is_whole and is_same:
        return bytes(slice_.run.data)
    return part_of(Run(head, slice_.run.data), slice_.bits, slice_.attempt, slice_.due_ms)


def part_of(run: Run, bits: int, attempt: int, due_ms: int) -> bytes:
    head = run.head
    is_whole = bits == item_bits(0, head.count)
    chosen = range(head.count) if is_whole else list(indexes(bits))

    def pick(values: Sequence[bytes]) -> list[bytes]:
        return [values[index] for index in chosen]

    has_ids = bool(head.flags & IDS) or not is_whole
    return encode_run(
        pick(run.payloads()),
        queue=head.queue,
        keys=pick(run.keys()) if head.flags & KEYS else None,
        item_ids=pick(run.packed_ids()) if has_ids else None,
        flow=head.flow,
        action=head.action,
        priority=head.priority,
        due_ms=due_ms,
        enqueued_ms=head.enqueued_ms,
        attempt=attempt,
        headers=head.headers(),
        run_id=head.run_id if is_whole else part_id(head.run_id, bits),
    )


def part_id(run_id: bytes, bits: int) -> bytes:
    """The id of a part: a UUIDv7 of the same time."""
    digest = blake2b(run_id + bits.to_bytes(BITS_BYTES, "little"), digest_size=RUN_ID_BYTES)
    made = bytearray(run_id[:TIME_BYTES] + digest.digest()[TIME_BYTES:])
    made[6] = 0x70 | made[6] & 0x0F
    made[8] = 0x80 | made[8] & 0x3F
    return bytes(made)


def fitted(run: Run, raw_bytes_max: int) -> Iterator[bytes]:
    """The run, or, where it is too long for whoever takes it, its halves, and theirs. A single
    item that is too long stays as it is, to be refused."""
    head = run.head
    if head.raw_bytes <= raw_bytes_max or head.count == 1:
        yield bytes(run.data)
        return
    everything = item_bits(0, head.count)
    half = first_bits(everything, head.count // 2)
    for bits in (half, everything & ~half):
        part = part_of(run, bits, head.attempt, head.due_ms)
        yield from fitted(read_run(part), raw_bytes_max)
