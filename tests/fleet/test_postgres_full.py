"""PostgreSQL's disk is full: what is new stays in the journal, what is stored is delivered, and
everything goes on by itself when there is room again.

The tables lie in a tablespace on a small file system of its own, so that the server itself says
`No space left on device`.
"""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import KeyOutcome, Refused
from tests.crash.small_disk import MIB, fill_up, small_disk
from tests.fleet.world import Member, World, until, world

DISK_BYTES = 48 * MIB
ITEMS = 100
ROOM = 20
ITEM_BYTES = 10_000
"""A run is more than what tables that have a few rows have room for."""
PULL: dict[str, Any] = {"handler": {"type": "pull"}, "warm_max_items": ROOM}
QUEUES = {"early": PULL, "late": PULL, "keyed": {"unique": "ignore"}}


@pytest.fixture
def disk() -> Iterator[Path]:
    # Open to whoever runs PostgreSQL, which pytest's own directories are not.
    directory = Path(tempfile.mkdtemp(prefix="fbdk-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        with small_disk(directory / "disk", DISK_BYTES) as disk:
            yield disk
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def fleet(disk: Path) -> Iterator[World]:
    with world() as made:
        place_on(made, disk)
        made.add("a", {"queues": QUEUES, "http": {"listen": "127.0.0.1:0"}}).start()
        yield made


def place_on(fleet: World, disk: Path) -> None:
    place = disk / "tables"
    place.mkdir()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
    fleet.postgres.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
    fleet.postgres.sql(f"ALTER DATABASE {fleet.database} SET TABLESPACE small")


def push(host: Member, queue: str) -> None:
    with host.client() as client:
        client.push(queue, (os.urandom(ITEM_BYTES) for _ in range(ITEMS)))


def offer(host: Member, key: str) -> KeyOutcome:
    with host.client() as client:
        return client.offer("keyed", key, os.urandom(50 * ITEM_BYTES))


def test_a_full_disk_of_postgresql_drains_and_overflow_waits_for_room(
    fleet: World, disk: Path
) -> None:
    [a] = fleet.hosts
    push(a, "early")
    until(lambda: a.queue("early")["cold"] == ITEMS - ROOM and is_handed_over(fleet))
    filler = fill_up(disk)

    push(a, "late")
    until(lambda: a.events("cold.away"))
    assert "No space left on device" in a.events("cold.away")[0]["error"]
    assert a.refusal("keyed", "one").retryable
    # What is stored comes out, whatever cannot be said of it there.
    found = a.drain("early", ITEMS)
    # More than warm has room for comes from the journal.
    found += a.drain("late", ITEMS // 2)
    fleet.until_books("late", held=ITEMS // 2)
    assert not in_store(a, "late")

    filler.unlink()
    until(lambda: offer_if_taken(a, "one"))
    found += a.drain("late", ITEMS // 2)
    assert len(set(found)) == 2 * ITEMS
    for queue in ("early", "late"):
        assert fleet.wait_settled(queue)["delivered"] == ITEMS
        assert a.finds_nothing(queue)
    push(a, "late")
    until(lambda: in_store(a, "late") == ITEMS)
    until(lambda: not a.is_away("cold"))
    until(lambda: a.metrics()['forebay_store_up{store="cold"}'] == 1)


def is_handed_over(fleet: World) -> bool:
    """Whether the journal has let go of all that is stored: on a full disk that fails."""
    found = fleet.postgres.sql(
        "SELECT count(*) FROM forebay.runs WHERE state = 'STORED'", fleet.database
    )
    return found == "0"


def in_store(host: Member, queue: str) -> int:
    held: int = host.stats()["shared"].get(queue, {}).get("held", 0)
    return held


def offer_if_taken(host: Member, key: str) -> bool:
    try:
        return offer(host, key) is KeyOutcome.CREATED
    except Refused as refused:
        if not refused.retryable:
            raise
        return False
