"""Two real daemons on one PostgreSQL look after the same schedule: a thousand ticks, each once.

Everything is real but the pace of the clocks (hurried.py): a tick each second comes 100 times a
second, both daemons look every 30 ms, and every look may find that the other was quicker. Ticks
come due live, while both deliver.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forebay import connect
from tests import forked
from tests.daemon.cli.commands import Host
from tests.eventually import at_once, eventually_sync
from tests.fleet.hurried import SINCE
from tests.fleet.world import PATIENCE_S, until
from tests.servers.postgres import fresh_database

TICKS = 1000
STEP_MS = 1000
RACE_S = 300.0
"""Nothing is measured by it: a slow machine takes longer than their clocks."""


class Hurried(Host):
    """A host whose daemon has fast clocks."""

    def launch(self, since_ms: int) -> None:
        env = self.environment | {SINCE: str(since_ms)}
        with (self.directory / "daemon.log").open("ab") as log:
            self.daemon = forked.start(["run"], env, log, module="tests.fleet.hurried")

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()

    def ticks(self) -> list[int]:
        """What was delivered here."""
        is_over = self.daemon is not None and self.daemon.poll() is not None
        assert not is_over, (self.directory / "daemon.log").read_text()
        path = self.directory / "jobs.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith(b"}\n")]
        return [int(line["headers"]["tick_ms"]) for line in whole]

    def installed(self) -> int:
        with connect(self.socket, wait=PATIENCE_S) as client:
            cron: dict[str, int] = client.stats()["cron"]
        return cron["installed_total"]


def config(directory: Path, url: str) -> dict[str, Any]:
    handler = {"type": "file", "path": str(directory / "jobs.jsonl")}
    return {
        # On their fast clock a lease of a day lasts longer than the test.
        "fleet": True,
        "cold": {"type": "postgres", "url": url, "acquire_timeout": "1d"},
        "queues": {"jobs": {"handler": handler}},
        "schedules": {"racing": {"queue": "jobs", "every": "1s", "missed": "run_all"}},
        "log": {"format": "json"},
    }


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Hurried]]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database())
        made: list[Hurried] = []
        for name in ("a", "b"):
            directory = tmp_path / name
            directory.mkdir()
            made.append(Hurried(directory, config(directory, url)))
            stack.callback(made[-1].close)
        yield made


def test_two_daemons_that_race_for_a_thousand_ticks_deliver_each_once(
    hosts: list[Hurried],
) -> None:
    since_ms = time.time_ns() // 1_000_000
    for host in hosts:
        host.launch(since_ms)
    # One may be a second later: it is a race from when both are there.
    until(lambda: all(host.installed() and host.ticks() for host in hosts))
    before = [host.installed() for host in hosts]
    first = max(delivered_by(hosts)) + STEP_MS
    wanted = set(range(first, first + TICKS * STEP_MS, STEP_MS))

    def check() -> None:
        with at_once():
            missing = wanted - delivered_by(hosts).keys()
        assert not missing, f"{len(missing)} of {TICKS} ticks are missing"

    eventually_sync(check, deadline_s=RACE_S)
    installed = [host.installed() - had for host, had in zip(hosts, before, strict=True)]
    for host in hosts:
        assert host.stop() == 0
    assert set(delivered_by(hosts).values()) == {1}
    # Each of them was the quicker one often enough.
    assert min(installed) > TICKS // 20, installed


def delivered_by(hosts: list[Hurried]) -> Counter[int]:
    """How often each tick was delivered."""
    return Counter(tick for host in hosts for tick in host.ticks())
