"""The time, as two clocks in the unit that everything stored uses.

The wall clock is what people and other hosts mean: when something is due, died or was enqueued.
It is set: by NTP, by an operator, when a virtual machine is resumed. How long something has taken
is none of its business. A lease that runs on it ends too early when it is set forward, while its
holder is still at work, and too late when it is set back.

So leases run on the steady clock: it starts at the wall clock's time, and from then on keeps the
pace of the monotonic clock, which nobody sets. What it can't do: mean anything to another process
or to the next life of this one, or tell of the time that a suspended machine was away.
"""

import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], int]

JUMP_MS: Final = 1000
"""Smaller steps of the wall clock are not worth a word: NTP makes them."""

_AHEAD_NS: Final = time.time_ns() - time.monotonic_ns()
"""What the wall clock was ahead of the monotonic one when this process started."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds that run forward only, whatever happens to the wall clock."""
    return (time.monotonic_ns() + _AHEAD_NS) // 1_000_000


def retry_due_ms(due_ms: int, failed_ms: int, now_ms: int) -> int:
    """When a retry is due that failed at `failed_ms` and was put off until `due_ms`.

    A failure in the future means that the wall clock was set back since. The retry then waits for
    its pause from now on, instead of for the time to come round again. A retry that is due before
    it failed was put off anew already.
    """
    if not now_ms + JUMP_MS < failed_ms <= due_ms:
        return due_ms
    return now_ms + due_ms - failed_ms


def lease_clock(now_ms: Clock, lease_ms: Clock | None) -> Clock:
    """The clock of leases: the one that was given, and steady by default.

    Whoever gives another wall clock, and nothing else, has one clock that he moves for everything.
    """
    if lease_ms is not None:
        return lease_ms
    return steady_ms if now_ms is wall_ms else now_ms
