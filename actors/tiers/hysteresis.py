"""Which tier a queue's runs go to: the hysteresis, as pure functions.

    go cold    at 100 %: warm and the items on their way there have reached a limit
    stay cold  until warm is at most 80 % full and cold has nothing due left
    warm up    the promoter fills warm while it is below 90 %, and never above the limit

While a queue is cold all its new runs go to cold, so that none overtakes another.
"""

from enum import Enum, auto
from typing import Final

from actors.ports.tiers import Fill, Limits

RESUME_SHARE: Final = 0.8
PROMOTE_SHARE: Final = 0.9
SCHEDULED_SHARE: Final = 0.5
SCHEDULED_MS: Final = 60_000
"""Items due sooner than this wait in warm, items due later in cold."""


class Tier(Enum):
    WARM = auto()
    COLD = auto()


def choose_tier(
    tier: Tier, fill: Fill, pending_items: int, limits: Limits, *, cold_has_due: bool
) -> Tier:
    """Where the next run of a queue goes, given where the last one went.

    `pending_items` are on their way to warm: taken from their owner and not entered yet.
    """
    if tier is Tier.WARM:
        is_full = fill.items + pending_items >= limits.items or fill.bytes >= limits.bytes
        return Tier.COLD if is_full else Tier.WARM
    is_low = (
        fill.items + pending_items <= RESUME_SHARE * limits.items
        and fill.bytes <= RESUME_SHARE * limits.bytes
    )
    return Tier.WARM if is_low and not cold_has_due else Tier.COLD


def headroom(fill: Fill, pending_items: int, limits: Limits) -> Limits:
    """How much the promoter may enter now; (0, 0) at 90 % and above."""
    items = fill.items + pending_items
    if items >= PROMOTE_SHARE * limits.items or fill.bytes >= PROMOTE_SHARE * limits.bytes:
        return Limits(0, 0)
    return Limits(limits.items - items, limits.bytes - fill.bytes)


def belongs_in_cold(due_ms: int, now_ms: int, fill: Fill, limits: Limits) -> bool:
    """Whether an item due at `due_ms` waits in cold: if it is due in more than a minute, or if
    scheduled items already fill half of warm and would keep out deliverable ones."""
    if due_ms <= now_ms:
        return False
    return due_ms > now_ms + SCHEDULED_MS or fill.scheduled >= SCHEDULED_SHARE * limits.items
