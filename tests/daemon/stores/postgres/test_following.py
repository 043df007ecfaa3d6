"""Two real daemons as two hosts, and one PostgreSQL: a write is staged with both, and is one."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forebay import Item, Refused, Unreachable, connect, encode_run
from forebay.writes import WRITE_HEADER, Sealed, new_write_id
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.servers.postgres import PostgresServer, fresh_database
from tests.spark.pulling import pull_all, staged, texts

TIMEOUT_S = 60.0
"""Nothing is measured by it: what never comes should fail the test."""
SHORT_S = 5.0
"""So long a client tries what cannot succeed."""


def make_host(directory: Path, url: str, timeout: str = "30s", **spool: str) -> Host:
    directory.mkdir()
    sizes = {"chunk_size": "4Mi", "min_free_bytes": 0, "spare_chunks": 0}
    cold = {"type": "postgres", "url": url, "timeout": timeout}
    return Host(directory, {"fleet": True, "cold": cold, "spool": {**sizes, **spool}})


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database())
        place = tmp_path_factory.mktemp("hosts")
        here, there = make_host(place / "a", url), make_host(place / "b", url)
        yield stack.enter_context(running(here)), stack.enter_context(running(there))


@pytest.fixture
def here(hosts: tuple[Host, Host]) -> Host:
    """Where the driver is."""
    return hosts[0]


@pytest.fixture
def there(hosts: tuple[Host, Host]) -> Host:
    return hosts[1]


def stage(host: Host, queue: str, write: bytes, *payloads: str) -> Sealed:
    rows = [payload.encode() for payload in payloads]
    run = encode_run(rows, queue=queue, headers={WRITE_HEADER: write.hex()})
    with connect(host.socket, TIMEOUT_S, wait=TIMEOUT_S) as client:
        part = client.stage(write)
        part.submit(run)
        return part.seal()


def wait_for(host: Host, queue: str, items: int) -> list[Item]:
    """So many items of a queue that come, perhaps only when a decision is heard of."""
    found: list[Item] = []
    with connect(host.socket, TIMEOUT_S) as client:

        def take() -> None:
            with client.lease(queue, items, wait_s=1) as lease:
                found.extend(lease)
            assert len(found) >= items, found

        eventually_sync(take)
    return found


def until_nothing_is_staged(host: Host, queue: str) -> None:
    def check() -> None:
        left = staged(host.socket, queue)
        assert left == 0, left

    eventually_sync(check)


def test_a_write_with_stages_on_two_hosts_is_published_by_one(here: Host, there: Host) -> None:
    write = new_write_id()
    mine, theirs = stage(here, "both", write, "a", "b"), stage(there, "both", write, "c")
    left = stage(there, "both", write, "left behind")
    with connect(here.socket) as client:
        published = client.publish(write, [mine.stage, theirs.stage])
        assert (published.outcome, published.items) == ("published", 3)
        # What is here is there to be taken when this is answered, from any host.
        assert client.receipt(write).pending == 3
    assert texts(wait_for(there, "both", 3)) == ["a", "b", "c"]
    assert staged(there.socket, "both") == 0
    for host in (here, there):
        with connect(host.socket) as client:
            assert client.publish(write, [left.stage]) == published
            assert client.abort_write(write).outcome == "published"
            receipt = client.receipt(write).wait(timeout=TIMEOUT_S)
            assert (receipt.accepted, receipt.delivered, receipt.pending) == (3, 3, 0)


def test_a_driver_whose_host_has_nothing_of_the_write(here: Host, there: Host) -> None:
    write = new_write_id()
    theirs = stage(there, "away", write, "a")
    with connect(here.socket) as client:
        done = client.publish(write, [theirs.stage], app="away", version=1)
        assert texts(wait_for(there, "away", 1)) == ["a"]
        assert client.receipt(write).wait(timeout=TIMEOUT_S).delivered == 1
    again = new_write_id()
    replayed = stage(here, "away", again, "a")
    with connect(there.socket) as client:
        second = client.publish(again, [replayed.stage], app="away", version=1)
        assert (second.outcome, second.write) == ("duplicate", done.write)
    assert not pull_all(here.socket, "away")
    until_nothing_is_staged(here, "away")


def test_a_daemon_that_was_down_at_publish_has_it_when_it_serves(here: Host, there: Host) -> None:
    write = new_write_id()
    mine, theirs = stage(here, "down", write, "a"), stage(there, "down", write, "b")
    dropped = new_write_id()
    stage(there, "down", dropped, "never")
    there.stop(signal.SIGKILL)
    with connect(here.socket) as client:
        assert client.publish(write, [mine.stage, theirs.stage]).items == 2
        assert client.abort_write(dropped).outcome == "aborted"
    there.start()
    assert staged(there.socket, "down") == 0
    assert texts(wait_for(there, "down", 2)) == ["a", "b"]
    # Once more: it knows what it has applied, and what it has told.
    there.stop()
    with connect(here.socket) as client:
        assert client.receipt(write).wait(timeout=TIMEOUT_S).delivered == 2
    there.start()
    assert not pull_all(there.socket, "down")


def test_a_missing_stage_is_named_and_a_failed_task_drops_its_own(here: Host, there: Host) -> None:
    write = new_write_id()
    mine, theirs = stage(here, "gaps", write, "a"), stage(there, "gaps", write, "b")
    nobody = new_write_id()
    with connect(there.socket) as client:
        assert client.drop_stage(write, theirs.stage) == 1
        assert client.drop_stage(write, theirs.stage) == 0
    assert staged(there.socket, "gaps") == 0
    with connect(here.socket) as client:
        for missing in (theirs.stage, nobody):
            with pytest.raises(Refused, match=missing.hex()):
                client.publish(write, [mine.stage, missing])
        assert client.publish(write, [mine.stage]).items == 1
    with connect(here.socket) as client:
        assert client.drop_stage(write, mine.stage) == 0
    assert texts(pull_all(here.socket, "gaps")) == ["a"]


def test_nothing_is_decided_while_postgres_is_away(server: PostgresServer, tmp_path: Path) -> None:
    write = new_write_id()
    url = server.url(server.create_database())
    with running(make_host(tmp_path / "a", url, timeout="2s")) as host:
        mine = stage(host, "alone", write, "a")
        server.stop()
        with connect(host.socket, TIMEOUT_S) as client, pytest.raises(Unreachable):
            client.publish(write, [mine.stage], timeout=1.0)
        with connect(host.socket, SHORT_S) as client:
            part = client.stage(write)
            part.submit(encode_run([b"b"], queue="alone", headers={WRITE_HEADER: write.hex()}))
            with pytest.raises((Refused, Unreachable)):
                part.seal()
        assert staged(host.socket, "alone") == 2
        server.start()
        with connect(host.socket, TIMEOUT_S) as client:
            assert client.publish(write, [mine.stage]).items == 1
        assert texts(pull_all(host.socket, "alone")) == ["a"]
        assert staged(host.socket, "alone") == 0


def test_a_write_that_nobody_ends_expires_on_all_hosts(tmp_path: Path) -> None:
    write = new_write_id()
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database())
        pair = [
            stack.enter_context(running(make_host(tmp_path / name, url, stage_ttl="5s")))
            for name in "ab"
        ]
        for host in pair:
            stage(host, "old", write, "a")
        for host in pair:
            until_nothing_is_staged(host, "old")
        with connect(pair[0].socket) as client, pytest.raises(Refused, match="aborted"):
            client.publish(write, [new_write_id()])


def test_what_was_staged_before_the_store_was_shared_is_published(tmp_path: Path) -> None:
    """One daemon, first alone and then one of a fleet."""
    open_write, ended, replay = new_write_id(), new_write_id(), new_write_id()
    alone = Host(tmp_path)
    with running(alone):
        mine = stage(alone, "old", open_write, "a")
        done = stage(alone, "old", ended, "b")
        with connect(alone.socket) as client:
            before = client.publish(ended, [done.stage], app="old", version=1)
        alone.stop()
    with fresh_database() as url:
        shared = Host(tmp_path, {"fleet": True, "cold": {"type": "postgres", "url": url}})
        with running(shared):
            again = stage(shared, "old", replay, "b")
            with connect(shared.socket) as client:
                assert client.publish(ended, [done.stage]) == before
                assert client.receipt(ended).accepted == 1
                repeated = client.publish(replay, [again.stage], app="old", version=1)
                assert (repeated.outcome, repeated.write) == ("duplicate", ended)
                assert client.publish(open_write, [mine.stage]).items == 1
            assert texts(pull_all(shared.socket, "old")) == ["a", "b"]
