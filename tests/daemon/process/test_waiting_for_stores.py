"""A daemon whose PostgreSQL is away says so at once, goes on saying so, and can be stopped."""

import signal
from pathlib import Path
from typing import Any

import structlog.testing
import trio.testing

from actors.ports.tiers import StoreUnavailable
from daemon.cli.exits import Exit
from daemon.stores.open import _Waiting
from tests import forked
from tests.daemon.cli.commands import HANG_S, Host
from tests.eventually import eventually_sync

AWAY = {"cold": {"type": "postgres", "url": "postgresql://u@127.0.0.1:1/d", "timeout": "5m"}}
"""With a timeout that no test would live to see."""


def test_refused_connection_ends_the_start_at_once(tmp_path: Path) -> None:
    done = Host(tmp_path, AWAY).command("run")
    assert done.returncode == Exit.FAILURE
    *said, last = done.stderr.decode().splitlines()
    assert "daemon.opens_store" in said[0]
    assert "Connection refused (--wait-for-stores waits for it)" in last


def test_waiting_is_said_at_once_and_ends_with_sigterm(tmp_path: Path) -> None:
    host = Host(tmp_path, AWAY)
    with open(tmp_path / "daemon.log", "ab") as log:
        process = forked.start(["run", "--wait-for-stores"], host.environment, log)
    try:

        def told() -> None:
            opens, waits = host.log()[:2]
            assert (opens["event"], opens["timeout"]) == ("daemon.opens_store", "5m")
            assert waits["event"] == "daemon.waits_for_store"
            assert "Connection refused" in waits["error"]

        eventually_sync(told, errors=(ValueError,))
        # A reload that was asked for now is not the end.
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == Exit.OK
    finally:
        if process.poll() is None:
            process.kill()
    assert host.log()[-1]["event"] == "daemon.stopped"
    assert not host.socket.exists()


async def test_waiting_is_told_every_few_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with structlog.testing.capture_logs() as logs:
        waiting = _Waiting("postgresql://u:hush@db/forebay", 10)
        for _ in range(20):
            await waiting.wait(StoreUnavailable("refused"))
    told: list[Any] = [line["waited_s"] for line in logs if "waited_s" in line]
    assert told == [0, 5, 10, 15]
    assert {line["store"] for line in logs} == {"postgresql://db/forebay"}
