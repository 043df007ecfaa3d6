"""The hysteresis as a table: 100 % to go cold, 80 % to come back, 90 % for the promoter."""

import pytest

from actors.ports.tiers import Fill, Limits
from actors.tiers.hysteresis import SCHEDULED_MS, Tier, belongs_in_cold, choose_tier, headroom

LIMITS = Limits(items=100, bytes=1000)
WARM, COLD = Tier.WARM, Tier.COLD


@pytest.mark.parametrize(
    "tier,items,size,pending,has_due,expected",
    [
        # At 100 % a queue goes cold, and not before: in items, with what is on its way, in bytes.
        (WARM, 0, 0, 0, False, WARM),
        (WARM, 99, 0, 0, False, WARM),
        (WARM, 100, 0, 0, False, COLD),
        (WARM, 101, 0, 0, False, COLD),
        (WARM, 99, 0, 1, False, COLD),
        (WARM, 98, 0, 1, False, WARM),
        (WARM, 0, 0, 100, False, COLD),
        (WARM, 1, 999, 0, False, WARM),
        (WARM, 1, 1000, 0, False, COLD),
        # What is due in cold does not make a warm queue cold.
        (WARM, 99, 999, 0, True, WARM),
        # A cold one stays cold above 80 %, in items, with what is on its way, and in bytes.
        (COLD, 99, 0, 0, False, COLD),
        (COLD, 81, 0, 0, False, COLD),
        (COLD, 80, 0, 0, False, WARM),
        (COLD, 80, 0, 1, False, COLD),
        (COLD, 79, 0, 1, False, WARM),
        (COLD, 0, 0, 81, False, COLD),
        (COLD, 1, 801, 0, False, COLD),
        (COLD, 1, 800, 0, False, WARM),
        # And as long as cold has something due, however empty warm is.
        (COLD, 0, 0, 0, True, COLD),
        (COLD, 80, 800, 0, True, COLD),
        (COLD, 0, 0, 0, False, WARM),
    ],
)
def test_tier(
    tier: Tier, items: int, size: int, pending: int, has_due: bool, expected: Tier
) -> None:
    fill = Fill(items=items, bytes=size)
    assert choose_tier(tier, fill, pending, LIMITS, cold_has_due=has_due) is expected


@pytest.mark.parametrize(
    "items,size,pending,expected",
    [
        (0, 0, 0, (100, 1000)),
        (89, 0, 0, (11, 1000)),
        (90, 0, 0, (0, 0)),
        (100, 0, 0, (0, 0)),
        (89, 0, 1, (0, 0)),
        (80, 0, 9, (11, 1000)),
        (0, 0, 90, (0, 0)),
        (1, 899, 0, (99, 101)),
        (1, 900, 0, (0, 0)),
    ],
)
def test_headroom_of_the_promoter(
    items: int, size: int, pending: int, expected: tuple[int, int]
) -> None:
    room = headroom(Fill(items=items, bytes=size), pending, LIMITS)
    assert room == expected


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7])
def test_small_limits_can_be_reached_and_left(most: int) -> None:
    """However small the limit: an empty queue takes something, a full one is cold, none is stuck
    between the two."""
    limits = Limits(most, 1000)
    assert headroom(Fill(), 0, limits).items == most
    assert choose_tier(WARM, Fill(items=most), 0, limits, cold_has_due=False) is COLD
    assert choose_tier(COLD, Fill(), 0, limits, cold_has_due=False) is WARM
    for items in range(most + 1):
        room = headroom(Fill(items=items), 0, limits)
        assert room.items + items <= most


def test_what_is_due_within_a_minute_is_not_cold() -> None:
    room = (Fill(), Limits(100, 1 << 20))
    assert not belongs_in_cold(0, 1_000_000, *room)
    assert not belongs_in_cold(1_000_000 + SCHEDULED_MS, 1_000_000, *room)
    assert belongs_in_cold(1_000_001 + SCHEDULED_MS, 1_000_000, *room)


def test_what_is_not_due_takes_half_of_warm_at_most() -> None:
    limits = Limits(100, 1 << 20)
    assert not belongs_in_cold(2, 1, Fill(items=100, scheduled=49), limits)
    assert belongs_in_cold(2, 1, Fill(items=100, scheduled=50), limits)
    assert not belongs_in_cold(1, 1, Fill(items=100, scheduled=50), limits)
