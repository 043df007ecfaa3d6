"""A destination that fails as an item's id says: at first, for long, or for ever.

`deliver` is what a python handler calls, in the daemon. It tells of each attempt in a file beside
the daemon's log, one line and one write each, before it succeeds or fails.
"""

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from forebay.item import Item, Reject, Retry

NAME: Final = "flaky.jsonl"
LATER_S: Final = 600
"""More than what waits in warm, and than any test takes."""
RETRIES_MAX: Final = 2
RETRIES_LATER_MAX: Final = 1


class Temper(NamedTuple):
    """How an item fares."""

    failures: int
    """So many of its attempts fail."""
    dies: bool = False
    later: bool = False
    """It comes again after a long time."""
    error: str = "not now"


GOOD: Final = Temper(0)
REJECTED: Final = Temper(1, dies=True, error="never")
TEMPERS: Final = (
    *(GOOD,) * 5,
    Temper(1),
    Temper(2),
    Temper(1, later=True, error="much later"),
    Temper(2, later=True, error="much later"),
    REJECTED,
    Temper(RETRIES_MAX + 1, dies=True, error="not now, not ever"),
    Temper(RETRIES_LATER_MAX + 1, dies=True, later=True, error="once more, much later"),
)
SETTINGS: Final[dict[str, Any]] = {
    "handler": {"type": "python", "function": "tests.crash.flaky:deliver"},
    "max_retries": RETRIES_MAX,
    "backoff": {"initial": "1ms", "multiplier": 1, "max": "1ms", "jitter": 0},
    "retry_rules": [
        {"error": "once more", "delay": f"{LATER_S}s", "max_retries": RETRIES_LATER_MAX},
        {"error": "much later", "delay": f"{LATER_S}s"},
    ],
    "breaker": {"enabled": False},
}


def temper_of(item_id: str) -> Temper:
    return TEMPERS[crc32(item_id.encode()) % len(TEMPERS)]


_told: list[int] = []


def tell(path: Path) -> None:
    """From now on, there. A kill may have cut the last line short, at the end of a page: the next
    line must not continue it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    _told[:] = [fd]


async def deliver(item: Item) -> None:
    temper = temper_of(item.id)
    is_good = item.attempt >= temper.failures
    told = {"id": item.id, "attempt": item.attempt, "good": is_good, "payload": item.text}
    os.write(_told[0], json.dumps(told).encode() + b"\n")
    if not is_good:
        raise Reject(temper.error) if temper == REJECTED else Retry(temper.error)
