"""The process stays within what its settings promise, with many queues that nobody drains."""

import os
from pathlib import Path

from daemon.process.memory import machine_limit_bytes
from forebay import connect, encode_run
from tests.daemon.cli.commands import Host, running

MIB = 1024 * 1024
QUEUES = 40
ROUNDS = 20
RUN_BYTES = 250_000
FOR_RUNS = 24 * MIB
IN_FLIGHT = 8 * MIB
BESIDE = 40 * MIB
"""SQLite's cache (16 MiB), its log's index, what a thread has in its hands while it writes, and
heaps that do not shrink."""


def resident(host: Host, name: str) -> int:
    assert host.daemon is not None
    lines = Path(f"/proc/{host.daemon.pid}/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(name)]
    return int(value) * 1024


def test_many_queues_that_nobody_drains_stay_in_their_memory(tmp_path: Path) -> None:
    share = 100 * FOR_RUNS / machine_limit_bytes()
    host = Host(
        tmp_path,
        {
            "memory": {"memory_limit_ratio": 1, "queue_memory_percent": share},
            "socket": {
                "max_run_bytes": "1Mi",
                "inflight_bytes": IN_FLIGHT,
                "window_bytes": IN_FLIGHT,
            },
        },
    )
    with running(host), connect(host.socket) as client:
        at_start = resident(host, "VmRSS")
        for _ in range(ROUNDS):
            for number in range(QUEUES):
                # Random bytes: they do not become smaller on the way.
                client.submit(encode_run([os.urandom(RUN_BYTES)], queue=f"q{number}"))
        client.drain()
        assert client.stats()["daemon"]["held"] == QUEUES * ROUNDS
        peak = resident(host, "VmHWM")
    assert QUEUES * ROUNDS * RUN_BYTES > 7 * FOR_RUNS
    assert peak < at_start + FOR_RUNS + IN_FLIGHT + BESIDE, f"{peak / MIB:.0f} MiB"
