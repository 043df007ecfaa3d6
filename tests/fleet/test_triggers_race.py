"""Two real daemons on one PostgreSQL have the same QUEUE trigger: each item is in one job, whoever
runs the trigger, though one of them stands still for longer than its lease and one is killed."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forebay import connect
from tests import forked
from tests.daemon.cli.commands import Host
from tests.fleet.world import PATIENCE_S, until
from tests.servers.postgres import fresh_database

BATCH = 10


class Watchful(Host):
    """A host whose daemon looks after triggers in a hurry."""

    def launch(self) -> None:
        with (self.directory / "daemon.log").open("ab") as log:
            env = self.environment
            self.daemon = forked.start(["run"], env, log, module="tests.fleet.watchful")

    def signal(self, number: int) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(number)

    def close(self) -> None:
        if self.daemon is not None:
            self.signal(signal.SIGCONT)
            self.daemon.kill()
            self.daemon.wait()

    def control(self, op: str, **fields: Any) -> dict[str, Any]:
        with connect(self.socket, wait=PATIENCE_S) as client:
            answer: dict[str, Any] = client.control(op, **fields)
            return answer

    def push(self, items: int) -> None:
        """Durable in the shared store on return, so that this daemon is not needed for them."""
        with connect(self.socket, wait=PATIENCE_S) as client:
            for _ in range(0, items, 5):
                client.push("docs", ["x"] * 5)
        until(lambda: not self.counts("docs")["spooled"])

    def counts(self, queue: str) -> dict[str, int]:
        with connect(self.socket, wait=PATIENCE_S) as client:
            books: dict[str, int] = client.stats()["queues"].get(queue, {})
        return Counter(books)

    def runs_trigger(self) -> bool:
        return bool(self.control("trigger.show", name="t")["runs_here"])

    def jobs(self) -> list[tuple[str, tuple[str, ...]]]:
        """What was delivered here: the id of each job, and what it listed."""
        path = self.directory / "jobs.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith(b"}\n")]
        return [(line["id"], tuple(json.loads(line["payload"])["ids"])) for line in whole]


def config(directory: Path, url: str) -> dict[str, Any]:
    trigger = {"type": "QUEUE", "queue": "docs", "target": "jobs", "batch_size": BATCH}
    # What a killed daemon has leased is delivered again after twice the timeout and a margin.
    handler = {"type": "file", "path": str(directory / "jobs.jsonl"), "timeout": "3s"}
    return {
        "fleet": True,
        "cold": {"type": "postgres", "url": url, "acquire_timeout": "5s", "timeout": "5s"},
        "queues": {"jobs": {"handler": handler}, "docs": {"handler": {"type": "pull"}}},
        "triggers": {"t": {**trigger, "polling_interval": "100ms"}},
        "log": {"format": "json"},
    }


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Watchful]]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database())
        made: list[Watchful] = []
        for name in ("a", "b"):
            directory = tmp_path / name
            directory.mkdir()
            made.append(Watchful(directory, config(directory, url)))
            stack.callback(made[-1].close)
        for host in made:
            host.launch()
        yield made


def test_each_item_is_in_one_job_whatever_becomes_of_the_daemon_that_makes_them(
    hosts: list[Watchful],
) -> None:
    for host in hosts:
        host.push(100)
    pushed = 200
    # One that stands still loses the trigger, and goes on without it.
    until(lambda: [host.runs_trigger() for host in hosts].count(True) == 1)
    first, second = sorted(hosts, key=lambda host: not host.runs_trigger())
    first.signal(signal.SIGSTOP)
    until(second.runs_trigger)
    first.signal(signal.SIGCONT)
    until(lambda: not first.runs_trigger())
    # One that is killed in the middle of it leaves all to the other.
    second.control("trigger.pause", name="t")
    for host in hosts:
        host.push(200)
        pushed += 200
    made = len(delivered(hosts))
    second.control("trigger.resume", name="t")
    until(lambda: len(delivered(hosts)) > made)
    second.signal(signal.SIGKILL)
    assert first.counts("docs")["held"]
    first.push(50)
    pushed += 50
    until(first.runs_trigger)
    until(lambda: first.counts("docs")["delivered"] == pushed)
    until(lambda: not first.counts("jobs")["held"])
    books = first.counts("docs")
    assert (books["dead"], books["held"]) == (0, 0)
    jobs = delivered(hosts)
    listed = Counter(item for ids in jobs.values() for item in ids)
    assert len(listed) == pushed
    assert set(listed.values()) == {1}
    assert max(map(len, jobs.values())) == BATCH
    assert first.counts("jobs")["delivered"] == len(jobs)


def delivered(hosts: list[Watchful]) -> dict[str, tuple[str, ...]]:
    """What each job lists; one that comes again lists the same."""
    found: dict[str, tuple[str, ...]] = {}
    for host in hosts:
        for job, ids in host.jobs():
            assert found.setdefault(job, ids) == ids
    return found
