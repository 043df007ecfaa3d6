"""A run as its owner sees it: where it is stored, where a row came from, and the fate of its items.

The journal owns a run until it is handed over to a row of the cold store. The row keeps its
`Origin`, so that a crash between storing the row and marking the run repeats nothing.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from forebay.ids import RUN_ID_BYTES
from forebay.run import RunHead


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A committed run and its place in the journal."""

    position: int
    size: int
    """Its size on disk, including the frame."""
    head: RunHead
    data: bytes


class Place(NamedTuple):
    """Where a run is stored, and what must be known of it without reading it."""

    position: int
    size: int
    items: int


class Fate(IntEnum):
    """The fate of items. The numbers are stored in mark files: never reuse one."""

    DELIVERED = 1
    DROPPED = 2
    RETRY = 3
    """Not final: these items have failed and will be retried."""
    HANDED_OVER = 4
    """The cold store owns them now."""
    DELETED = 5
    MOVED = 6
    """They were exported to another daemon. Found in journals of older versions; never written."""
    LOST = 7
    """They were destroyed by damage on disk."""


DURABLE_FATES: Final = frozenset({Fate.DROPPED, Fate.HANDED_OVER, Fate.DELETED})
"""Marks of these must be synced; losing any other mark only delivers again."""


POSITION_BYTES: Final = 8


class Origin(NamedTuple):
    """Where the items of a row were in the journal."""

    position: int
    run_id: bytes
    bits: int


def pack_origin(origin: Origin) -> bytes:
    bits = origin.bits.to_bytes((origin.bits.bit_length() + 7) // 8, "little")
    return origin.position.to_bytes(POSITION_BYTES, "little") + origin.run_id + bits


def unpack_origin(packed: bytes) -> Origin:
    position, rest = packed[:POSITION_BYTES], packed[POSITION_BYTES:]
    run_id, bits = rest[:RUN_ID_BYTES], rest[RUN_ID_BYTES:]
    return Origin(int.from_bytes(position, "little"), run_id, int.from_bytes(bits, "little"))
