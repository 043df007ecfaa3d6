"""A run as its owner sees it: where it is stored, where a row came from, and how its items ended.

The journal is the owner of a run until the run is handed over to a row of the cold store. The row
keeps its `Origin`, so that a crash between storing the row and marking the run repeats nothing.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from forebay.ids import RUN_ID_BYTES
from forebay.run import RunHead


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A committed run and where its owner keeps it."""

    position: int
    size: int
    """What it takes on disk, frame and all."""
    head: RunHead
    data: bytes


class Place(NamedTuple):
    """Where a run lies, and as much of it as must be known without reading it."""

    position: int
    size: int
    items: int


class Fate(IntEnum):
    """What became of items. The numbers stand in mark files: never reuse one."""

    DELIVERED = 1
    DROPPED = 2
    RETRY = 3
    """Not the end: these items have failed and will be tried again."""
    HANDED_OVER = 4
    """The cold store owns them now."""
    DELETED = 5
    MOVED = 6
    """They were exported, for another daemon."""
    LOST = 7
    """Damage on disk has destroyed them."""


DURABLE_FATES: Final = frozenset({Fate.DROPPED, Fate.HANDED_OVER, Fate.DELETED, Fate.MOVED})
"""Losing the mark of another can only deliver again."""


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
