"""One client can neither stall nor bloat the daemon: attacks on a real one.

Beside each attack a client that behaves well pushes, and asks /healthz. It must be served, however
long that takes: nothing here depends on the speed of the machine. `make bench-attacks` measures
how long it takes.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.attackers import ATTACKS, SETTINGS, Attack, Siege, Target
from forebay import connect
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.daemon.process.test_memory_bound import MIB, resident
from tests.eventually import eventually_sync

PUSHES = 10
LOOKS = 3
REFUSAL_S = 0.7
BLOWS = 8
"""After so many the attack is surely under way: 8 connections do the same."""

CONFIG: dict[str, Any] = {
    "socket": {},
    "spool": {"chunk_size": "8Mi", "min_free_bytes": 0, "spare_chunks": 0},
    "http": {"listen": "127.0.0.1:0", "rate_limit": 0},
    "queues": {**SETTINGS, "well-behaved": {"handler": {"type": "pull"}}},
}


@contextmanager
def besieged(attack: Attack, target: Target) -> Iterator[Siege]:
    over = threading.Event()
    siege = Siege(over.is_set)
    thread = threading.Thread(target=attack, args=(target, siege), daemon=True)
    thread.start()
    try:
        yield siege
    finally:
        over.set()
        thread.join(HANG_S)


@pytest.mark.parametrize(
    "name, blows, mib",
    [
        ("announce", 900, 64),
        ("begin_frames", 5, 300),
        ("leave_unread", 8, 300),
        ("fail_with_patterns", 2, 100),
        ("settle_many_parts", BLOWS, 300),
        ("settle_many_leases", BLOWS, 100),
        ("control_many_values", BLOWS, 300),
        ("control_long_text", BLOWS, 300),
        ("post_many_values", BLOWS, 200),
        ("post_allowed_values", BLOWS, 200),
        ("post_lines", 1, 200),
    ],
)
def test_daemon_stays_small_and_serves_others_under_attack(
    tmp_path: Path, name: str, blows: int, mib: int
) -> None:
    """Without bounds these attacks cost up to 16 GB, and kept the event loop for up to 37 s."""
    with running(Host(tmp_path, CONFIG)) as host:
        address = (host.state_dir / "http.address").read_text().strip()
        before = resident(host, "VmRSS")
        with besieged(ATTACKS[name], Target(host.socket, address)) as siege:
            eventually_sync(lambda: siege.blows >= blows, "the attack is under way")
            with (
                connect(host.socket, HANG_S) as client,
                httpx.Client(base_url=address, trust_env=False, timeout=HANG_S) as http,
            ):
                for _ in range(PUSHES):
                    client.push("well-behaved", [b"x" * 300])
                for _ in range(LOOKS):
                    assert http.get("/healthz").status_code == 200
            grown = resident(host, "VmHWM") - before
        assert grown < mib * MIB, f"{grown / MIB:.0f} MiB"
        assert host.daemon is not None
        assert host.daemon.poll() is None
        assert host.books("well-behaved")["accepted"] == PUSHES


@pytest.mark.parametrize("name", ["settle_many_parts", "control_many_values", "post_many_values"])
def test_request_that_is_refused_costs_little(tmp_path: Path, name: str) -> None:
    """In processor time, which other work on the machine does not change. Without bounds: 4.2 s
    for the first and 1.1 s for the second; now about 0.05 s, most of which is the receiving."""
    with running(Host(tmp_path, CONFIG)) as host:
        address = (host.state_dir / "http.address").read_text().strip()
        before_s = processor_s(host)
        with besieged(ATTACKS[name], Target(host.socket, address)) as siege:
            eventually_sync(lambda: siege.blows >= 2 * BLOWS, "the attack is under way")
            spent_s, blows = processor_s(host) - before_s, siege.blows
    assert spent_s / blows < REFUSAL_S


def processor_s(host: Host) -> float:
    assert host.daemon is not None
    fields = Path(f"/proc/{host.daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
