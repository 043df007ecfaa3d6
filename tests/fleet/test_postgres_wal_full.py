"""The disk of PostgreSQL's log (pg_wal) is full: the server panics, and cannot come back before
there is room. Whatever is new stays in the journal meanwhile, what is warm is delivered, and all of
it goes on by itself when the server is there again.

The log lies on a small file system of its own, in segments of 1 MiB.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import KeyOutcome
from tests.crash.small_disk import MIB, fill_up, small_disk
from tests.fleet.test_postgres_full import in_store, offer, offer_if_taken
from tests.fleet.world import Member, World, until, world

DISK_BYTES = 12 * MIB
ITEMS = 100
ROOM = 20
ITEM_BYTES = 10_000
PUSHES_MAX = 24
"""Each is 1 MB of the log: more than its disk has room for."""
PULL: dict[str, Any] = {"handler": {"type": "pull"}, "warm_max_items": ROOM}
QUEUES = {"logged": PULL, "keyed": {"unique": "ignore"}}


@pytest.fixture
def disk() -> Iterator[Path]:
    # Open to whoever runs PostgreSQL, which pytest's own directories are not.
    directory = Path(tempfile.mkdtemp(prefix="fbwl-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        with small_disk(directory / "disk", DISK_BYTES) as disk:
            yield disk
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def fleet(disk: Path) -> Iterator[World]:
    with world() as made:
        made.postgres.sql("ALTER SYSTEM SET max_wal_size = '4MB'")
        made.postgres.sql("ALTER SYSTEM SET min_wal_size = '2MB'")
        made.postgres.stop()
        made.postgres.place_log(disk / "pg_wal")
        made.postgres.start()
        made.add("a", {"queues": QUEUES}).start()
        yield made


def push(host: Member) -> int:
    with host.client() as client:
        client.push("logged", (os.urandom(ITEM_BYTES) for _ in range(ITEMS)))
    return ITEMS


def has_panicked(fleet: World) -> bool:
    return b"PANIC:" in (fleet.postgres.directory / "log").read_bytes()


def test_postgresql_panics_on_a_full_log_and_everything_goes_on_by_itself(
    fleet: World, disk: Path
) -> None:
    [a] = fleet.hosts
    assert offer(a, "one") is KeyOutcome.CREATED
    filler = fill_up(disk)
    pushed = 0
    # All of it is taken, whatever PostgreSQL does.
    while not has_panicked(fleet):
        assert pushed < PUSHES_MAX * ITEMS, "the log has more room than its disk"
        pushed += push(a)
        until(lambda: has_panicked(fleet) or a.queue("logged")["held"] == 0 or is_stored(a))
    assert b"No space left on device" in (fleet.postgres.directory / "log").read_bytes()
    until(lambda: a.events("cold.away"))
    stored = in_store(a, "logged")
    pushed += push(a)
    assert a.refusal("keyed", "two").retryable
    found = a.drain("logged", ROOM)

    filler.unlink()
    # Whoever looks after the server starts it again, if it has given up.
    fleet.postgres.put_right()
    until(lambda: offer_if_taken(a, "two"))
    found += a.drain("logged", pushed - ROOM)
    assert len(set(found)) == pushed
    assert stored < pushed
    books = fleet.wait_settled("logged")
    assert (books["accepted"], books["delivered"]) == (pushed, pushed)
    assert a.finds_nothing("logged")
    until(lambda: not a.is_away("cold"))
    push(a)
    until(lambda: is_stored(a))


def is_stored(host: Member) -> bool:
    """Nothing of it waits in the journal."""
    entry = host.queue("logged")
    return bool(entry["held"] == entry["cold"] + entry["warm"])
