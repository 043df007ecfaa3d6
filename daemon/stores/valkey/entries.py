"""Slices as text: a record whose beginning sorts as the slices do, and that a script can cut.

daemon/stores/valkey/lua_state.py says where everything is in a record. Runs of this daemon's
journal and of others' look the same there: who leases a slice sees by the daemon's id whose it is.
"""

import json
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from actors.model.slices import (
    Abroad,
    InCold,
    InJournal,
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
from forebay.ids import RUN_ID_BYTES
from forebay.run import read_head

RUN_KEY_BYTES: Final = 49
TOKEN_BYTES: Final = 8
_HEAD: Final = struct.Struct(">BQ16sH8s8s17s16sHIQQH")
_JOURNAL: Final = struct.Struct(">QQ")
_RANGE: Final = struct.Struct(">HH")
_NAMES_LEN: Final = struct.Struct(">H")
_ATTEMPT: Final = struct.Struct(">I")

assert _HEAD.size == 100, "where the scripts look for the ranges"


class Entry(NamedTuple):
    """A record, read."""

    token: int
    run_key: bytes
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]

    def as_slice(self, run: LentRun) -> Slice:
        return Slice(run, self.bits, self.attempt, self.due_ms, self.errors)


def flow_mark(flow: str) -> bytes:
    """8 bytes that stand for a flow."""
    return blake2b(flow.encode(), digest_size=8).digest()


def journal_owner(daemon: bytes) -> bytes:
    """Who must keep the runs of a daemon's journal valid."""
    return b"J" + daemon


def cold_owner(lock: bytes) -> bytes:
    """The same for rows that were acquired under a lock."""
    return b"C" + lock


def pack_entry(slice_: Slice, daemon: bytes) -> bytes:
    """`daemon` is this one, whose journal's the runs are if nothing else is said."""
    head = slice_.run.head
    owner, reference = _owner(slice_.run, daemon)
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
                owner,
                reference,
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
    (_, _, run_id, _, token, _, owner, reference, _, _, due_ms, _, count) = _HEAD.unpack_from(
        record
    )
    bits_end = _HEAD.size + count * _RANGE.size
    (names_len,) = _NAMES_LEN.unpack_from(record, bits_end)
    rest = bits_end + _NAMES_LEN.size + names_len
    (attempt,) = _ATTEMPT.unpack_from(record, rest)
    errors = record[rest + _ATTEMPT.size :]
    return Entry(
        int.from_bytes(token, "big"),
        _run_key(owner, run_id, reference),
        unpack_bits(record[_HEAD.size : bits_end]),
        attempt,
        due_ms,
        tuple(map(read_error, json.loads(errors))) if errors else (),
    )


def run_key(run: LentRun, daemon: bytes) -> bytes:
    """A run and who lent it: under this its bytes are kept."""
    owner, reference = _owner(run, daemon)
    return _run_key(owner, run.head.run_id, reference)


def lent_run(key: bytes, data: bytes | None, daemon: bytes) -> LentRun:
    if data is None:
        raise StoreCorrupt("a slice is there whose run is not")
    try:
        head = read_head(data)
    except BadRun as error:
        raise StoreCorrupt(f"a run came back damaged: {error}") from error
    return LentRun(head, data, owner_of(key, daemon))


def owner_of(key: bytes, daemon: bytes) -> InJournal | InCold | Abroad:
    lender, reference = key[1:17], key[33:]
    if key[:1] == b"C":
        return InCold(lender, reference)
    token, position = _JOURNAL.unpack(reference)
    return InJournal(token, position) if lender == daemon else Abroad(lender, token, position)


def run_id_of(key: bytes) -> bytes:
    return key[17:33]


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


def read_runs(pairs: Sequence[bytes], daemon: bytes) -> dict[bytes, LentRun]:
    """Of keys and bytes by turns."""
    return {
        key: lent_run(key, data, daemon) for key, data in zip(pairs[::2], pairs[1::2], strict=True)
    }


def _owner(run: LentRun, daemon: bytes) -> tuple[bytes, bytes]:
    match run.owner:
        case InCold(row, lock):
            _check(row, lock)
            return cold_owner(lock), row
        case InJournal(token, position):
            return journal_owner(daemon), _JOURNAL.pack(token, position)
        case Abroad(other, token, position):
            _check(other)
            return journal_owner(other), _JOURNAL.pack(token, position)


def _run_key(owner: bytes, run_id: bytes, reference: bytes) -> bytes:
    if owner[:1] == b"C":
        return b"C" + reference + run_id + owner[1:]
    return owner + run_id + reference


def _check(*ids: bytes) -> None:
    for each in ids:
        if len(each) != RUN_ID_BYTES:
            raise ValueError(f"ids of rows, locks and daemons have {RUN_ID_BYTES} bytes")
