"""The time, as two clocks in milliseconds, the unit of all stored times.

The wall clock is what people and other hosts mean: when something is due, died or was enqueued. It
can be set: by NTP, by an operator, when a virtual machine is resumed. So it must not measure
durations. A lease on the wall clock would end too early when it is set forward, while its holder is
still at work, and too late when it is set back.

So leases run on the steady clock: it starts at the wall clock's time and then keeps the pace of the
monotonic clock, which is never set. It means nothing to another process or after a restart, and it
does not count the time that a machine was suspended.
"""

import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], int]

JUMP_MS: Final = 1000
"""Smaller steps of the wall clock are ignored: NTP makes them."""

_AHEAD_NS: Final = time.time_ns() - time.monotonic_ns()
"""How far the wall clock was ahead of the monotonic one when this process started."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds that only run forward, even if the wall clock is set."""
    return (time.monotonic_ns() + _AHEAD_NS) // 1_000_000


def retry_due_ms(due_ms: int, failed_ms: int, now_ms: int) -> int:
    """When a retry is due that failed at `failed_ms` and was postponed until `due_ms`.

    A failure in the future means that the wall clock was set back since. The retry then waits for
    its pause from now on, instead of until that time comes again. A retry that is due before it
    failed was already postponed anew.
    """
    if not now_ms + JUMP_MS < failed_ms <= due_ms:
        return due_ms
    return now_ms + due_ms - failed_ms


def lease_clock(now_ms: Clock, lease_ms: Clock | None) -> Clock:
    """The clock of leases: the given one, by default the steady clock.

    If only a custom wall clock is given, it serves for leases as well, so that a test moves one
    clock.
    """
    if lease_ms is not None:
        return lease_ms
    return steady_ms if now_ms is wall_ms else now_ms
