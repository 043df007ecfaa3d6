"""The disk of a lost host: a daemon on its state directory delivers the items that are left."""

import shutil
import signal
from pathlib import Path
from typing import Any

from forebay import Client, connect, encode_run
from forebay.writes import WRITE_HEADER, new_write_id
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

RUNS, RUN_ITEMS = 40, 25
ITEMS = RUNS * RUN_ITEMS
CONFIG = {"defaults": {"warm_max_items": 50, "max_retries": 0}}


def make(tmp_path: Path, name: str) -> Host:
    directory = tmp_path / name
    directory.mkdir()
    return Host(directory, CONFIG)


def push(client: Client) -> None:
    """Pushes so many items that some overflow to the cold store, and waits until they are there."""
    client.push("crm", [f"crm{at}" for at in range(ITEMS)], run_items=RUN_ITEMS)

    def spread() -> None:
        parts = client.stats()["queues"]["crm"]
        assert parts["cold"] > 0, parts
        assert parts["spooled"] + parts["warm"] > 0, parts
        assert parts["cold"] + parts["spooled"] + parts["warm"] == ITEMS, parts

    eventually_sync(spread)


def take(client: Client, queue: str, count: int) -> list[Any]:
    """Takes this number of items and acknowledges them."""
    taken: list[Any] = []
    while len(taken) < count:
        with client.lease(queue, count - len(taken), wait_s=HANG_S) as lease:
            assert lease, f"{len(taken)} of {count} items of {queue}"
            taken += lease
    return taken


def stage(client: Client, write: bytes, *payloads: bytes) -> bytes:
    part = client.stage(write)
    part.submit(encode_run(payloads, queue="written", headers={WRITE_HEADER: write.hex()}))
    return part.seal().stage


def test_daemon_on_a_moved_state_directory_delivers_what_the_books_hold(tmp_path: Path) -> None:
    lost, found = make(tmp_path, "lost"), make(tmp_path, "found")
    published, unpublished = new_write_id(), new_write_id()
    with running(lost):
        with connect(lost.socket) as client:
            push(client)
            delivered = take(client, "crm", 3)
            with client.lease("crm", 1, wait_s=HANG_S) as lease:
                [dead] = lease
                lease.nack(lease, error="refused")
            client.publish(published, [stage(client, published, b"a", b"b")])
            open_stage = stage(client, unpublished, b"c")
        counts = {"accepted": ITEMS + 2, "delivered": 3, "dead": 1, "staged": 1}
        lost.until_books(counts | {"held": ITEMS - 2})
        lost.stop(signal.SIGKILL)
    shutil.move(lost.state_dir, found.state_dir)
    with running(found):
        found.until_books(counts | {"held": ITEMS - 2})
        with connect(found.socket) as client:
            found_items = take(client, "crm", ITEMS - 4)
            client.publish(unpublished, [open_stage])
            written = take(client, "written", 3)
            client.wait_receipt(published, timeout=HANG_S)
        found.until_books({"accepted": ITEMS + 3, "delivered": ITEMS + 2, "dead": 1})
        assert dead.id in found.ok("dead", "ls", "--json")
    everything = [*delivered, dead, *found_items]
    assert len({item.id for item in everything}) == ITEMS
    payloads = sorted(item.payload.decode() for item in everything)
    assert payloads == sorted(f"crm{at}" for at in range(ITEMS))
    assert sorted(item.payload for item in written) == [b"a", b"b", b"c"]
