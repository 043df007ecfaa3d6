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
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger()

FIRST_FD: Final = 3
SEND_S: Final = 1.0
"""How long the event loop waits at most if systemd does not read."""


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
