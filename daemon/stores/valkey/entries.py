"""Slices of rows as text: a record whose beginning sorts as the slices do, and that a script can
cut. daemon/stores/valkey/lua_state.py says where everything is in a record.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final, NamedTuple

from actors.model.slices import (
    InCold,
    ItemError,
    LentRun,
    Slice,
    error_rows,
    item_bits,
    lowest_bit,
    ranges,
    read_error,
)
from actors.ports.tiers import StoreCorrupt
from forebay.errors import BadRun
from forebay.run import read_head

TOKEN_BYTES: Final = 8
_HEAD: Final = struct.Struct(">BQ16sH8s8sc16s16sHIQQH")
FRESH, RAN_OUT = b"F", b"X"
"""The mark of a slice: whether a lease of it has run out."""
_RANGE: Final = struct.Struct(">HH")
_NAMES_LEN: Final = struct.Struct(">H")
_ATTEMPT: Final = struct.Struct(">I")

assert _HEAD.size == 100, "where the scripts look for the ranges"


class Entry(NamedTuple):
    """A record, read."""

    token: int
    run_key: bytes
    epoch: bytes
    has_run_out: bool
    """A lease of it has run out: its items may be settled already."""
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]

    def as_slice(self, run: LentRun) -> Slice:
        return Slice(run, self.bits, self.attempt, self.due_ms, self.errors)


def flow_mark(flow: str) -> bytes:
    """8 bytes that stand for a flow."""
    return blake2b(flow.encode(), digest_size=8).digest()


def pack_entry(slice_: Slice) -> bytes:
    """Of a row that is locked under the epoch of the queue."""
    head = slice_.run.head
    owner = row_of(slice_.run)
    flow, action = head.flow.encode(), head.action.encode()
    names = bytes([len(flow)]) + flow + action
    packed = pack_bits(slice_.bits)
    return b"".join(
        (
            _HEAD.pack(
                head.priority,
                head.due_ms or head.enqueued_ms,
                head.run_id,
                lowest_bit(slice_.bits),
                bytes(TOKEN_BYTES),
                flow_mark(head.flow),
                FRESH,
                owner.lock,
                owner.row,
                slice_.items,
                slice_.run.item_bytes,
                slice_.due_ms,
                head.enqueued_ms,
                len(packed) // _RANGE.size,
            ),
            packed,
            _NAMES_LEN.pack(len(names)),
            names,
            _ATTEMPT.pack(slice_.attempt),
            json.dumps(error_rows(slice_.errors)).encode() if slice_.errors else b"",
        )
    )


def unpack_entry(record: bytes) -> Entry:
    (_, _, run_id, _, token, _, mark, epoch, row, _, _, due_ms, _, count) = _HEAD.unpack_from(
        record
    )
    bits_end = _HEAD.size + count * _RANGE.size
    (names_len,) = _NAMES_LEN.unpack_from(record, bits_end)
    rest = bits_end + _NAMES_LEN.size + names_len
    (attempt,) = _ATTEMPT.unpack_from(record, rest)
    errors = record[rest + _ATTEMPT.size :]
    return Entry(
        int.from_bytes(token, "big"),
        row + run_id,
        epoch,
        mark == RAN_OUT,
        unpack_bits(record[_HEAD.size : bits_end]),
        attempt,
        due_ms,
        tuple(map(read_error, json.loads(errors))) if errors else (),
    )


def run_key(run: LentRun) -> bytes:
    """The row and its run: under this the bytes are kept."""
    return row_of(run).row + run.head.run_id


def row_of(run: LentRun) -> InCold:
    """Raises ValueError if the run does not belong to a row of the cold store."""
    owner = run.owner
    if not isinstance(owner, InCold) or len(owner.row) != 16 or len(owner.lock) != 16:
        raise ValueError("only rows of the cold store are shared, and their ids have 16 bytes")
    return owner


def locked_under(epoch: bytes, run: LentRun) -> LentRun:
    owner = row_of(run)
    return run if owner.lock == epoch else replace(run, owner=InCold(owner.row, epoch))


def lent_run(key: bytes, data: bytes | None, epoch: bytes) -> LentRun:
    if data is None:
        raise StoreCorrupt("a slice is there whose run is not")
    try:
        head = read_head(data)
    except BadRun as error:
        raise StoreCorrupt(f"a run came back damaged: {error}") from error
    return LentRun(head, data, InCold(key[:16], epoch))


def read_names(names: bytes) -> tuple[str, str]:
    """Flow and action."""
    flow_end = 1 + names[0]
    return names[1:flow_end].decode(), names[flow_end:].decode()


def pack_bits(bits: int) -> bytes:
    return b"".join(_RANGE.pack(first, last) for first, last in ranges(bits))


def unpack_bits(packed: bytes) -> int:
    bits = 0
    for first, last in _RANGE.iter_unpack(packed):
        bits |= item_bits(first, last)
    return bits


def lease_mark(record: bytes) -> bytes:
    """What was leased, beside the number: the run, its first item, and how many."""
    return record[9:27] + record[76:78]


def pack_token(token: int) -> bytes:
    """As a script looks for it; a number that cannot be a token is one that is never given."""
    return token.to_bytes(TOKEN_BYTES, "big") if 0 < token < 1 << 63 else b"none"


def read_runs(pairs: Sequence[bytes], epoch: bytes) -> dict[bytes, LentRun]:
    """Of keys and bytes by turns."""
    return {
        key: lent_run(key, data, epoch) for key, data in zip(pairs[::2], pairs[1::2], strict=True)
    }
