"""Whether a new run is stored, waits, pushes out an old run or is refused."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from actors.config.settings import SpoolSettings
from actors.model.units import format_size
from forebay.errors import Refused

FullPolicy = Literal["block", "drop_newest", "drop_oldest"]

PINNED_FACTOR = 2
"""The chunks may take this many times `max_bytes` on disk while old items keep them alive."""


class Verdict(Enum):
    STORE = auto()
    WAIT = auto()
    DROP_OLDEST = auto()


@dataclass(frozen=True, slots=True)
class Fill:
    """How full the spool is."""

    live_runs: int
    live_bytes: int
    disk_bytes: int
    disk_is_low: bool
    """Less than `min_free_bytes` is left on the file system."""


def admit(fill: Fill, size: int, policy: FullPolicy, settings: SpoolSettings) -> Verdict | Refused:
    """A full disk refuses at once, whatever the policy; a full spool follows the policy.

    If old items keep the chunks alive, dropping other runs would free nothing, so the push waits.
    """
    if fill.disk_is_low:
        text = f"less than min_free_bytes ({format_size(settings.min_free_bytes)}) of disk is left"
        return Refused("DISK_FULL", text, retry_after_ms=1000)
    pinned = fill.disk_bytes + size > PINNED_FACTOR * settings.max_bytes
    limit = _limit_reached(fill, size, settings)
    if limit is None and not pinned:
        return Verdict.STORE
    if policy == "drop_newest":
        took = f"its chunks, kept alive by old items, take {format_size(fill.disk_bytes)} on disk"
        return full(limit or took)
    if policy == "drop_oldest" and not pinned:
        return Verdict.DROP_OLDEST
    return Verdict.WAIT


def full(limit: str) -> Refused:
    return Refused("QUEUE_FULL", f"the spool is full: {limit}", retry_after_ms=1000)


def _limit_reached(fill: Fill, size: int, settings: SpoolSettings) -> str | None:
    if settings.max_size and fill.live_runs >= settings.max_size:
        return f"spool.max_size is {settings.max_size} runs"
    if fill.live_bytes + size > settings.max_bytes:
        return f"spool.max_bytes is {format_size(settings.max_bytes)}"
    return None
