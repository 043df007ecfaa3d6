"""Two hosts: a worker and a daemon on each, one PostgreSQL, and a driver on the first host.

Whatever fails, every row is visible once, on one of the two. The tests share the cluster and the
daemons; the last one kills the driver, and goes on with another.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forebay import Item, connect
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.servers.postgres import fresh_database
from tests.spark.proxy import Moment, Proxy
from tests.spark.pulling import pull_all, staged
from tests.spark.standalone import HANG_S, SPARK_CLASS, Cluster, environment
from tests.spark.test_stream_sink import Feed

ROWS = 2000

pytestmark = [
    pytest.mark.long,  # Three JVMs of a cluster, two drivers, and two executors for each.
    pytest.mark.skipif(not SPARK_CLASS.exists(), reason="this PySpark has no cluster"),
]


class DriverFailed(Exception):
    """Nothing more comes of it: whoever waits for it need not go on."""


class Driver:
    """An application, in a process group with its JVM."""

    def __init__(self, master: str, place: Path, environment: dict[str, str]) -> None:
        place.mkdir()
        self.place = place
        self._jobs = 0
        self._answers: list[str] = []
        self._log = (place / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("fleet_driver.py"), master, place],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._answers += self._process.stdout

    def begin(self, queue: str, parts: int, **job: Any) -> None:
        assert self._process.stdin is not None
        self._jobs += 1
        line = {"id": self._jobs, "queue": queue, "parts": parts, **job}
        print(json.dumps(line), file=self._process.stdin, flush=True)

    def check(self) -> None:
        """Nothing has failed so far."""
        if self._process.poll() is not None:
            raise DriverFailed(Path(self._log.name).read_text()[-4000:])
        for answer in self._answers:
            if json.loads(answer)["error"] is not None:
                raise DriverFailed(answer)

    def wait(self) -> None:
        """Until everything that was begun has succeeded."""

        def done() -> None:
            self.check()
            assert len(self._answers) == self._jobs, self._answers

        eventually_sync(done, deadline_s=HANG_S)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for end in (self._process.stdin, self._process.stdout, self._log):
            assert end is not None
            end.close()


class World:
    """`decide` is asked what becomes of each frame between the driver and its host's daemon."""

    def __init__(self, here: Host, there: Host, master: str, place: Path) -> None:
        self.here, self.there = here, there
        self.hosts = (here, there)
        self.decide: Callable[[Moment], bool] = lambda _: True
        self._master = master
        self._place = place
        self.written_in = place
        """Where the driver works that has made the saves of `written`."""
        self._start("one")

    def replace_driver(self) -> None:
        """The first one is gone, with all that it had started. What runs its commit is a process of
        its own, in a process group of its own, and may be alive for a while: nothing that it says
        is passed on any more."""
        self.close()
        self.decide = lambda _: True
        self._start("two")

    def _start(self, name: str) -> None:
        path = self._place / f"{name}.sock"
        self._front = Proxy(path, self.here.socket, lambda moment: self.decide(moment)).__enter__()
        self.driver = Driver(self._master, self._place / name, environment(path))

    def close(self) -> None:
        self._front.close()
        self.driver.kill()

    def accepted(self, queue: str) -> int:
        return sum(self.here_and_there(queue))

    def here_and_there(self, queue: str) -> list[int]:
        """Items that became visible on each host."""
        found = []
        for host in self.hosts:
            with connect(host.socket) as client:
                found.append(int(client.stats()["queues"].get(queue, {}).get("accepted", 0)))
        return found

    def staged(self, queue: str) -> int:
        return sum(staged(host.socket, queue) for host in self.hosts)

    def check_all_once(
        self, queue: str, rows: int = ROWS, *, has_orphans: bool = False
    ) -> list[int]:
        """Every row is visible once, and nothing is left but orphans; how many on each host."""

        def published() -> None:
            accepted, left = self.accepted(queue), self.staged(queue)
            assert accepted >= rows, f"{accepted} of {rows} items"
            assert bool(left) is has_orphans, f"{left} items are staged"

        eventually_sync(published, deadline_s=HANG_S)
        on_hosts = [pull_all(host.socket, queue) for host in self.hosts]
        found: list[Item] = [item for items in on_hosts for item in items]
        assert sorted(int(item.text) for item in found) == list(range(rows))
        assert len({item.id for item in found}) == rows
        writes = {item.headers["forebay-write"] for item in found}
        for host in self.hosts:
            with connect(host.socket) as client:
                receipts = [client.receipt(write).wait(timeout=HANG_S) for write in writes]
            assert sum(receipt.accepted for receipt in receipts) == rows
            assert sum(receipt.delivered for receipt in receipts) == rows
        return [len(items) for items in on_hosts]


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database())
        cold = {"fleet": True, "cold": {"type": "postgres", "url": url}}
        here, there = (Host(place, cold) for place in cluster.hosts)
        world = World(here, there, cluster.master, tmp_path_factory.mktemp("f"))
        stack.callback(world.close)
        for host in world.hosts:
            stack.enter_context(running(host))
        yield world


@pytest.fixture(scope="module")
def written(world: World) -> World:
    """Saves that need no attention, as many at a time as two cores can take."""
    world.driver.begin("spread", 4, rows=ROWS, change="meet")
    world.driver.begin("replayed", 3, rows=ROWS, version=1)
    world.driver.wait()
    world.driver.begin("retried", 3, rows=ROWS, change="fail")
    world.driver.begin("speculative", 4, rows=ROWS, change="hang")
    world.driver.begin("replayed", 2, rows=ROWS, version=1, shuffled=True)
    world.driver.wait()
    # Alone: its copies need both cores at the same time.
    world.driver.begin("twice", 4, rows=ROWS, change="twice")
    world.driver.wait()
    world.written_in = world.driver.place
    return world


def test_a_save_is_spread_over_both_hosts_and_published_by_one(written: World) -> None:
    assert all(written.check_all_once("spread"))


def test_tasks_that_fail_and_are_tried_again(written: World) -> None:
    written.check_all_once("retried")


def test_a_task_that_runs_on_both_hosts_at_once(written: World) -> None:
    written.check_all_once("speculative")


def test_of_two_copies_of_a_task_that_both_finish_one_is_visible(written: World) -> None:
    """Each has sealed all of its rows, on another host, before either of them ended."""
    sealed = sorted((written.written_in / "sealed").iterdir())
    assert [at.name for at in sealed] == ["0", "1"]
    sockets = {at.read_text() for at in sealed}
    assert sockets == {str(host.socket) for host in written.hosts}
    written.check_all_once("twice")


def test_a_transaction_that_is_replayed_in_other_partitions(written: World) -> None:
    written.check_all_once("replayed")


def test_daemons_that_are_killed_between_seal_and_publish(world: World) -> None:
    """The driver's own is back for the next try; the other one is away when it is decided."""
    seen: list[Moment] = []

    def kill_both(moment: Moment) -> bool:
        seen.append(moment)
        if seen != ["publish"]:
            return True
        world.there.stop(signal.SIGKILL)
        world.here.stop(signal.SIGKILL)
        world.here.start()
        return False

    world.decide = kill_both
    try:
        world.driver.begin("killed", 4, rows=ROWS, change="meet")
        world.driver.wait()
        assert seen.count("publish") == 2
        with connect(world.here.socket) as client:
            here = client.stats()["queues"]["killed"]["accepted"]
    finally:
        world.there.start()
    assert here < ROWS
    assert all(world.check_all_once("killed"))


def test_a_driver_that_is_killed_before_and_after_its_commit_is_decided(
    world: World, tmp_path: Path
) -> None:
    """A batch and a stream each: published, but the driver never hears of it; and staged, but the
    daemon is never asked."""
    feeds = {name: Feed(make(tmp_path / name)) for name in ("stream-after", "stream-before")}
    for feed in feeds.values():
        feed.add(300)
        feed.add(200)

    def begin(moment: str, parts: int, **how: Any) -> None:
        feed = feeds[f"stream-{moment}"]
        places = {"source": str(feed.source), "checkpoint": str(feed.checkpoint)}
        world.driver.begin(f"batch-{moment}", parts, rows=ROWS, version=1, **how)
        world.driver.begin(f"stream-{moment}", parts, **places)

    world.decide = lambda moment: moment != "published"
    begin("after", 3)
    both = ("batch-after", "stream-after")

    def decided() -> None:
        world.driver.check()
        assert all(map(world.accepted, both)), list(map(world.accepted, both))

    eventually_sync(decided, deadline_s=HANG_S)
    world.decide = lambda _: False
    begin("before", 3)
    staged = {"batch-before": ROWS, "stream-before": 300}

    def ready() -> None:
        world.driver.check()
        there = {queue: world.staged(queue) for queue in staged}
        assert all(there[queue] >= staged[queue] for queue in staged), there

    eventually_sync(ready, deadline_s=HANG_S)
    world.replace_driver()
    assert world.accepted("batch-before") == world.accepted("stream-before") == 0

    begin("after", 2, shuffled=True)
    begin("before", 2, shuffled=True)
    world.driver.wait()
    world.check_all_once("stream-after", 500)
    world.check_all_once("batch-after")
    # What the first driver had staged and never published is nobody's: it expires.
    world.check_all_once("stream-before", 500, has_orphans=True)
    world.check_all_once("batch-before", has_orphans=True)


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory
