"""Ports for servers that must know their port before they start."""

import random
import socket
from typing import Final

PORTS: Final = range(12_000, 22_000)
"""Below the range from which the kernel takes ports for outgoing connections (32,768 by default):
a port from that range could be taken between the look and the start of the server."""


def free_port() -> int:
    """A port of loopback that no other caller of this function is given as long as this process
    lives.

    It stays bound, and nothing listens on it until the server does: servers set SO_REUSEADDR, which
    lets them bind it too. The next caller, here or in another process, does not set it, and fails.
    """
    while True:
        port = random.choice(PORTS)
        with socket.socket() as kept:
            try:
                kept.bind(("127.0.0.1", port))
            except OSError:
                continue
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.detach()
            return port
