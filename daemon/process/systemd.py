"""Talks to systemd: readiness, the watchdog, inherited sockets.

It needs no library: a notification is one datagram to `NOTIFY_SOCKET`, and sockets are passed as
descriptors from 3 on, counted in `LISTEN_FDS`. Without systemd the variables are not set, and
these functions do nothing.

    notify("READY=1", "STATUS=serving")      notify("STOPPING=1")      notify(*reloading())

What it cannot do: know whether systemd received a notification. If one cannot be sent, that is
logged and the daemon continues.
"""

import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

import structlog
import trio

from actors.ports.tiers import StoreUnavailable

log = structlog.get_logger()

FIRST_FD: Final = 3
SEND_S: Final = 1.0
"""How long the event loop waits at most if systemd does not read."""
ASK_AFTER: Final = 1 / 2
ANSWER_WITHIN: Final = 1 / 4
"""Shares of WATCHDOG_USEC. The first late answer is in the log before systemd acts on it."""

assert ASK_AFTER + ANSWER_WITHIN < 1


class InheritedFd(NamedTuple):
    fd: int
    name: str
    """The socket unit's name, or its FileDescriptorName; empty if systemd gave none."""


def notify(*lines: str) -> bool:
    """Notifies the service manager; False if there is none, or it could not be notified."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    # An abstract address is written with an @ for its leading zero.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(SEND_S)
            sock.sendto("\n".join(lines).encode(), target)
    except OSError as error:
        log.warning("systemd.not_told", lines=lines, address=address, error=str(error))
        return False
    return True


def reloading() -> tuple[str, str]:
    """The lines to send before a reload, with the time that Type=notify-reload requires. READY=1
    ends the reload."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def watchdog_s() -> float | None:
    """Within how many seconds each WATCHDOG=1 is due; None if systemd expects none."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    is_for_us = not pid or pid == str(os.getpid())
    return int(usec) / 1e6 if usec.isdecimal() and int(usec) > 0 and is_for_us else None


def take_inherited() -> list[InheritedFd]:
    """The descriptors that systemd passed. A second call, or a child process, finds none."""
    count = os.environ.pop("LISTEN_FDS", "")
    pid = os.environ.pop("LISTEN_PID", "")
    names = os.environ.pop("LISTEN_FDNAMES", "")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    fds = range(FIRST_FD, FIRST_FD + int(count))
    for fd in fds:
        # They came without CLOEXEC; a handler's command must not hold the socket open.
        os.set_inheritable(fd, False)
    named = names.split(":") if names else []
    return [
        InheritedFd(fd, named[index] if index < len(named) else "") for index, fd in enumerate(fds)
    ]


class Watchdog:
    """Feeds systemd's watchdog, but only while the daemon makes progress.

    Twice per WATCHDOG_USEC it checks for progress, and sends WATCHDOG=1 if there is some. Running
    is not enough: the watchdog must also catch an event loop that turns while the spooler waits for
    a disk forever. After a check without an answer the next one follows at once, so that WATCHDOG=1
    is sent as soon as the daemon makes progress again.

    Owns nothing. Without WATCHDOG_USEC `run` returns at once. On cancel it stops feeding. During a
    drain it continues; systemd stops expecting WATCHDOG=1 after STOPPING=1.

    What it cannot do: tell a dead disk from one that needs longer than WatchdogSec for a sync. Both
    end in a restart, which loses nothing that was acknowledged.
    """

    def __init__(self, check: Callable[[], Awaitable[bool]], period_s: float | None = None) -> None:
        """`check` returns whether there is progress; it is cancelled if it takes too long.

        `period_s` is WATCHDOG_USEC in seconds, from the environment if it is not given.
        """
        self._check = check
        self._period_s = watchdog_s() if period_s is None else period_s
        self._is_stuck = False

    async def run(self) -> None:
        if self._period_s is None:
            return
        while True:
            asked_at = trio.current_time()
            is_alive = False
            with trio.move_on_after(self._period_s * ANSWER_WITHIN):
                is_alive = await self._check()
            if is_alive:
                notify("WATCHDOG=1")
            self._tell(is_alive)
            share = ASK_AFTER if is_alive else ANSWER_WITHIN
            await trio.sleep_until(asked_at + self._period_s * share)

    def _tell(self, is_alive: bool) -> None:
        """One line at each change."""
        if is_alive and self._is_stuck:
            log.info("watchdog.progress_again")
        if not is_alive and not self._is_stuck:
            log.error("watchdog.no_progress", restart_within_s=self._period_s)
        self._is_stuck = not is_alive


def answers(report: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    """A check that makes a report, which goes through the cold store's thread and the spooler's
    inbox, loop and commit."""

    async def check() -> bool:
        # A spooler that has sealed the journal cannot get stuck any more.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, StoreUnavailable):
            await report()
        return True

    return check
