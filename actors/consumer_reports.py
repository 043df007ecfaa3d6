"""What consumers say about leased items, in terms of the items of the run. Pure functions."""

from collections.abc import Sequence
from typing import Final, NamedTuple, assert_never

from actors.handling import Failure
from actors.slices import HeldBy, cut_text, ranges
from actors.tiers import Leased
from forebay.errors import BadFrame
from forebay.lease_frames import Part, What
from forebay.limits import SETTLE_TEXT_BYTES_MAX

RESULT_TEXT_MAX: Final = SETTLE_TEXT_BYTES_MAX
"""Characters of a result that are kept."""


class FailedPart(NamedTuple):
    bits: int
    """Of the run."""
    failure: Failure


class Ended(NamedTuple):
    """What became of a lease: each of its slice's items is in one of the three."""

    leased: Leased
    delivered: int
    failed: tuple[FailedPart, ...]
    released: int
    results: tuple[tuple[int, str], ...] = ()
    """What was said of items that are delivered: bits of the run, and text."""
    holder: HeldBy | None = None


def what_became(leased: Leased, parts: Sequence[Part], holder: HeldBy | None = None) -> Ended:
    """What a consumer says about the items of its lease; what it does not name is released.

    BadFrame if it names an item twice, or one that is not there.
    """
    slice_ = leased.slice
    unnamed = (1 << slice_.items) - 1
    delivered = released = 0
    failed: list[FailedPart] = []
    results: list[tuple[int, str]] = []
    for part in parts:
        items = part.bits or unnamed
        if items & ~unnamed:
            raise BadFrame(f"lease {leased.token}: an item is named twice, or is not there")
        unnamed &= ~items
        bits = to_run_bits(slice_.bits, items)
        match part.what:
            case What.DELIVERED:
                delivered |= bits
                if part.text:
                    results.append((bits, cut_text(part.text, RESULT_TEXT_MAX)))
            case What.RELEASED:
                released |= bits
            case What.FAILED:
                if bits:
                    failed.append(FailedPart(bits, _failure(part)))
            case _:
                assert_never(part.what)
    released |= to_run_bits(slice_.bits, unnamed)
    return Ended(leased, delivered, tuple(failed), released, tuple(results), holder)


def to_run_bits(slice_bits: int, items: int) -> int:
    """Items counted within a slice, as items of its run."""
    bits = at = 0
    for first, last in ranges(slice_bits):
        bits |= (items >> at & ((1 << last - first) - 1)) << first
        at += last - first
    return bits


def _failure(part: Part) -> Failure:
    return Failure(
        cut_text(part.text) or "the consumer gave no reason",
        retry_after_s=None if part.delay_ms is None else part.delay_ms / 1000,
        is_permanent=part.is_permanent,
        blames_destination=False,
        failure_reason=part.failure_reason,
    )
