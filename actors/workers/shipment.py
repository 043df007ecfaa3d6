"""What a consumer gets for its leases: the run as stored, or a new run of just the leased items.

A consumer that leases a run of 4,096 items one by one would otherwise receive the whole run 4,096
times. So if less than half of a run is leased and the run is not small, the leased items are packed
into a run of their own, in which they keep their ids.

A body that cannot be unpacked is sent as it is: the consumer finds out and reports it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.model.slices import Slice, indexes
from actors.ports.tiers import Leased
from forebay.errors import BadRun
from forebay.lease_frames import LeasedRun
from forebay.limits import ANSWER_BYTES_MAX, ITEM_BITS_BYTES_MAX, LEASE_HEAD_BYTES, LEASES_MAX
from forebay.run import Run, take_items

SMALL_BYTES: Final = 4096
"""A run up to this size is sent whole, however few of its items are leased."""
_ROOM_BYTES: Final = ANSWER_BYTES_MAX - 2
_ENTRY_BYTES: Final = LEASE_HEAD_BYTES + ITEM_BITS_BYTES_MAX


class Shipment(NamedTuple):
    runs: list[LeasedRun]
    rest: Sequence[Leased]
    """Leases that do not fit into one answer."""


def ship(leased: Sequence[Leased]) -> Shipment:
    """Unpacks and packs where it pays. Pure CPU; use a thread if it is much (`unpacks_bytes`)."""
    runs: list[LeasedRun] = []
    room = _ROOM_BYTES
    for order, lease in enumerate(leased):
        bits, data = shipped_run(lease.slice)
        room -= _ENTRY_BYTES + len(data)
        if order == LEASES_MAX or (room < 0 and order):
            return Shipment(runs, leased[order:])
        runs.append(LeasedRun(lease.token, lease.until_ms, lease.slice.attempt, bits, data))
    return Shipment(runs, ())


def unpacks_bytes(leased: Sequence[Leased]) -> int:
    """How many bytes `ship` would have to unpack."""
    return sum(lease.slice.run.head.raw_bytes for lease in leased if pays_to_cut(lease.slice))


def pays_to_cut(part: Slice) -> bool:
    head, size = part.run.head, len(part.run.data)
    return size > SMALL_BYTES and 2 * part.items < head.count


def shipped_run(part: Slice) -> tuple[int, bytes]:
    """The bits that a LEASED names, and the bytes of the run that they refer to."""
    head, data = part.run.head, part.run.data
    if part.items == head.count:
        return 0, data
    if pays_to_cut(part):
        try:
            own = take_items(Run(head, data), list(indexes(part.bits)))
        except BadRun:
            return part.bits, data
        if len(own) < len(data):
            return 0, own
    return part.bits, data
