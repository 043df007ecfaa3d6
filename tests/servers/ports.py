"""Ports for servers that must know their port before they start."""

import os
import random
import socket
from typing import Final

FIRST: Final = 12_000
PER_WORKER: Final = 600
"""All ports lie below the range from which the kernel takes ports for outgoing connections (32,768
by default). A port from that range could be taken between the look and the start of the server.
Each process of the suite has ports of its own."""


def free_port() -> int:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 16
    first = FIRST + worker * PER_WORKER
    while True:
        port = random.randrange(first, first + PER_WORKER)
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
