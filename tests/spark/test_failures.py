"""Tasks fail, drivers and daemons are killed, answers get lost: every row is visible once."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forebay import Item, connect
from tests.daemon.cli.commands import Host
from tests.spark import driver
from tests.spark.proxy import Moment, Proxy
from tests.spark.pulling import pull_all, texts, until_nothing_is_staged
from tests.spark.test_stream_sink import Feed, run

ROWS = 3000


def numbers(spark: SparkSession, change: Callable[[str], str] | None = None) -> DataFrame:
    rows = spark.range(0, ROWS, 1, 3).select(F.col("id").cast("string").alias("value"))
    return (
        rows
        if change is None
        else rows.select(F.udf(change, useArrow=False)("value").alias("value"))
    )


def save(df: DataFrame, socket: Path, queue: str, **options: str) -> None:
    writer = df.write.format("forebay").mode("append").options(queue=queue, socket=str(socket))
    writer.options(runItems="50", **options).save()


def check_all_once(found: list[Item]) -> None:
    assert texts(found) == sorted(str(at) for at in range(ROWS))
    assert len({item.id for item in found}) == ROWS


@pytest.fixture
def small_batches(spark: SparkSession) -> None:
    """So that a task has staged much of what it has when it meets a certain row."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")


def fail_twice(value: str) -> str:
    context = TaskContext.get()
    assert context is not None
    if value.endswith("900") and context.attemptNumber() < 2:
        raise ValueError("not yet")
    return value


def fail_for_good(value: str) -> str:
    if value == "1900":
        raise ValueError("never")
    return value


@pytest.mark.usefixtures("small_batches")
def test_tasks_that_fail_and_are_tried_again(spark: SparkSession, host: Host, queue: str) -> None:
    save(numbers(spark, fail_twice), host.socket, queue)
    check_all_once(pull_all(host.socket, queue))
    until_nothing_is_staged(host.socket, queue)


@pytest.mark.usefixtures("small_batches")
def test_a_job_that_fails_for_good_leaves_nothing(
    spark: SparkSession, host: Host, queue: str
) -> None:
    with pytest.raises(PySparkException, match="never"):
        save(numbers(spark, fail_for_good), host.socket, queue)
    until_nothing_is_staged(host.socket, queue)
    assert queue not in {at for at, books in _queues(host).items() if books["accepted"]}


def test_an_answer_to_publish_that_is_lost(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    seen: list[Moment] = []

    def lose_the_first_answer(moment: Moment) -> bool:
        seen.append(moment)
        return seen.count("published") != 1 or moment != "published"

    with Proxy(tmp_path / "p.sock", host.socket, lose_the_first_answer) as proxy:
        save(numbers(spark), proxy.path, queue)
    assert [seen.count("publish"), seen.count("published")] == [2, 2]
    check_all_once(pull_all(host.socket, queue))


def test_a_daemon_that_is_killed_while_staging_and_while_publishing(
    spark: SparkSession, own_host: Host, queue: str
) -> None:
    seen: list[Moment] = []

    def kill_the_daemon(moment: Moment) -> bool:
        seen.append(moment)
        if (moment, seen.count(moment)) not in {("stage", 20), ("publish", 1), ("published", 1)}:
            return True
        own_host.stop(signal.SIGKILL)
        own_host.start()
        return False

    with Proxy(own_host.directory / "p.sock", own_host.socket, kill_the_daemon) as proxy:
        save(numbers(spark), proxy.path, queue)
    assert seen.count("publish") == 3
    check_all_once(pull_all(own_host.socket, queue))
    until_nothing_is_staged(own_host.socket, queue)


def test_stages_on_a_daemon_that_the_driver_does_not_reach_are_explained(
    spark: SparkSession, own_host: Host, host: Host, queue: str
) -> None:
    """One path, two daemons behind it: as on two hosts."""
    upstream = {"stage": host.socket, "publish": own_host.socket}
    swapped = own_host.directory / "s.sock"
    swapped.symlink_to(upstream["stage"])

    def swap(moment: Moment) -> bool:
        if moment == "publish" and os.readlink(swapped) != str(own_host.socket):
            swapped.unlink()
            swapped.symlink_to(own_host.socket)
            return False
        return True

    proxy = Proxy(own_host.directory / "p.sock", swapped, swap)
    with proxy, pytest.raises(PySparkException) as raised:
        save(numbers(spark), proxy.path, queue)
    assert "does not have all that was staged" in str(raised.value)
    assert "The tasks ran on" in str(raised.value)
    assert not pull_all(own_host.socket, queue)
    assert not pull_all(host.socket, queue)


def test_a_driver_that_is_killed_inside_commit(
    spark: SparkSession, own_host: Host, queue: str, tmp_path: Path
) -> None:
    """Two batches and two streams, of one application: each is caught as it publishes, two before
    the daemon hears of it, two after it has done it. Then the driver dies."""
    victims = [
        Victim("batch", "publish", 1, f"{queue}-0", tmp_path / "0"),
        Victim("batch", "published", 1, f"{queue}-1", tmp_path / "1"),
        Victim("stream", "publish", 2, f"{queue}-2", tmp_path / "2"),
        Victim("stream", "published", 2, f"{queue}-3", tmp_path / "3"),
    ]
    with ExitStack() as proxies:
        paths = [
            proxies.enter_context(Proxy(at.directory / "p.sock", own_host.socket, at.decide)).path
            for at in victims
        ]
        process = driver.start(
            [at.job(path) for at, path in zip(victims, paths, strict=True)], tmp_path
        )
        try:
            for victim in victims:
                assert victim.is_caught.wait(driver.HANG_S)
        finally:
            driver.kill(process)
            for victim in victims:
                victim.is_dead.set()
    accepted = {at.queue: _queues(own_host).get(at.queue, {}).get("accepted", 0) for at in victims}
    assert list(accepted.values()) == [0, ROWS, 1000, 1500]

    for victim in victims:
        if victim.kind == "batch":
            transaction = {"txnAppId": victim.queue, "txnVersion": "1"}
            save(numbers(spark).repartition(2), own_host.socket, victim.queue, **transaction)
            check_all_once(pull_all(own_host.socket, victim.queue))
        else:
            victim.feed.add(200)
            run(victim.feed.rows(spark).repartition(2), victim.feed, own_host, victim.queue)
            found = pull_all(own_host.socket, victim.queue)
            assert texts(found) == victim.feed.expected()
            assert len({item.id for item in found}) == 1700


class Victim:
    """A job of the driver, which is held for ever when it comes to a certain moment."""

    def __init__(self, kind: str, moment: Moment, number: int, queue: str, directory: Path) -> None:
        directory.mkdir()
        self.kind = kind
        self.queue = queue
        self.directory = directory
        self.feed = Feed(directory)
        self.feed.add(1000)
        self.feed.add(500)
        self.is_caught = Event()
        self.is_dead = Event()
        self._moment = moment
        self._left = number

    def job(self, socket: Path) -> driver.Job:
        if self.kind == "batch":
            return {"socket": str(socket), "queue": self.queue, "rows": str(ROWS)}
        return {
            "socket": str(socket),
            "queue": self.queue,
            "source": str(self.feed.source),
            "checkpoint": str(self.feed.checkpoint),
        }

    def decide(self, moment: Moment) -> bool:
        self._left -= moment == self._moment
        if self._left > 0:
            return True
        self.is_caught.set()
        self.is_dead.wait(driver.HANG_S)
        return False


def _queues(host: Host) -> dict[str, dict[str, int]]:
    with connect(host.socket) as client:
        queues: dict[str, dict[str, int]] = client.stats()["queues"]
    return queues
