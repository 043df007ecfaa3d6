"""An acknowledgement that was answered holds on shared stores too: the daemon and PostgreSQL are
killed right after an answer, and what PostgreSQL had not on disk is lost with it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from forebay import connect
from tests.crash.acker import Acker
from tests.crash.producer import ANSWER_S
from tests.crash.seeds import EFFORT, seeded
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.fleet.world import World, world

KILLS: Final = 2 * EFFORT
ITEMS: Final = 20 * KILLS
PULLED, KEYED = "pulled", "keyed"
QUEUES: Final[dict[str, Any]] = {
    # Much more than fits into warm: what a consumer leases there are rows.
    PULLED: {"handler": {"type": "pull"}, "warm_max_items": 20, "lease_time": "1h"},
    KEYED: {"handler": {"type": "pull"}, "unique": "replace"},
}


@pytest.fixture(scope="module")
def servers() -> Iterator[World]:
    with world() as made:
        yield made


def test_a_daemon_on_postgres(servers: World, tmp_path: Path) -> None:
    # Without `fleet` it has the database for itself.
    url = servers.postgres.url(servers.postgres.create_database())
    host = Host(tmp_path, {"cold": {"type": "postgres", "url": url}, "queues": QUEUES})
    with running(host):
        kill_after_acks(servers, host, host.start)


def test_a_daemon_of_a_fleet(servers: World) -> None:
    host = servers.add("a", {"queues": QUEUES})
    host.start(anew=False)
    kill_after_acks(servers, host, lambda: host.start(anew=False))


def kill_after_acks(servers: World, host: Host, start: Callable[[], None]) -> None:
    rng = seeded("acks", host.directory.name)
    acker = Acker(rng)
    with connect(host.socket, ANSWER_S) as client:
        for _ in range(ITEMS):
            client.push(PULLED, [os.urandom(20)])
        client.delayed(KEYED).offer_many([(f"key {at}", b"x", 1) for at in range(ITEMS)])
    host.until_counts(PULLED, spooled=0)
    for _ in range(KILLS):
        eventually_sync(lambda: finds_work(host))
        acker.work(host.socket, pulled=(PULLED,), by_lock=(KEYED,))
        assert host.daemon is not None
        host.daemon.kill()
        servers.postgres.kill()
        host.daemon.wait()
        servers.postgres.start()
        start()

        def is_known() -> None:
            with connect(host.socket, ANSWER_S) as client:
                queues = client.stats()["queues"]
            ended = sum(queues[name]["delivered"] + queues[name]["dead"] for name in QUEUES)
            assert ended == len(acker.acked), (ended, len(acker.acked))

        eventually_sync(is_known)
    assert acker.answers >= 2 * KILLS


def finds_work(host: Host) -> bool:
    """Whether a consumer would find something in both queues."""
    with connect(host.socket, ANSWER_S) as client:
        for queue in QUEUES:
            lease = client.lease(queue, 1, wait_s=1)
            lease.release()
            if not lease:
                return False
    return True
