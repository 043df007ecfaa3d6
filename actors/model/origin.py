"""Where a row of the cold store came from, in the words of the journal that it came from."""

from typing import Final, NamedTuple

from forebay.ids import RUN_ID_BYTES

POSITION_BYTES: Final = 8


class Origin(NamedTuple):
    """Where a row's items were, in the journal's words."""

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
