"""Two hosts, `a` and `b`, that all tests of a module share: starting daemons takes longer than
most tests. Every test has queues of its own, and leaves everything running."""

from collections.abc import Iterator

import pytest

from tests.fleet.world import Member, World, world


@pytest.fixture(scope="module")
def shared_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A module says in `PULLED` which queues wait for consumers, and in `QUEUES` what else is
    special; all others are written to files by both hosts."""
    pulled = {
        "handler": {"type": "pull"},
        "backoff": {"initial": "10ms", "jitter": 0},
        # Rows that Valkey has forgotten stay leased for at least as long.
        "lease_time": "2s",
    }
    queues = dict.fromkeys(getattr(request.module, "PULLED", ()), pulled)
    queues |= getattr(request.module, "QUEUES", {})
    with world() as made:
        a = made.add("a", {"queues": queues, "http": {"listen": "127.0.0.1:0"}})
        b = made.add("b", {"queues": queues})
        a.launch("--wait-for-stores")
        b.launch("--wait-for-stores")
        made.put_right()
        yield made
        for host in made.hosts:
            assert host.daemon is not None
            assert host.daemon.poll() is None


@pytest.fixture
def both(shared_world: World) -> Iterator[World]:
    """The world, and everything in it runs."""
    yield shared_world
    shared_world.put_right()


@pytest.fixture
def a(both: World) -> Member:
    return both.hosts[0]


@pytest.fixture
def b(both: World) -> Member:
    return both.hosts[1]
