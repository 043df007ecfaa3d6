"""The cold store is gone or damaged between a publish and the delivery of its rows.

A daemon answers a publish and is killed before anything is routed. The next one finds no cold
store, or a broken one: what was published is delivered, each row once, and the books balance.
"""

import json
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from forebay import Client, connect, encode_run
from forebay.writes import WRITE_HEADER, Sealed, new_write_id
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

COLD: Final = "cold.sqlite"
PAGE: Final = 8192
TABLES: Final = ("writes", "stages", "versions", "stages_unapplied")


def delete(cold: Path) -> None:
    for file in cold.parent.glob(f"{COLD}*"):
        file.unlink()


def fold(cold: Path) -> None:
    """Everything is in one file afterwards."""
    with closing(sqlite3.connect(cold)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        cold.with_name(COLD + suffix).unlink(missing_ok=True)


def scribble(cold: Path, *pages: int) -> None:
    data = bytearray(cold.read_bytes())
    for page in pages:
        data[page * PAGE : (page + 1) * PAGE] = random.Random(page).randbytes(PAGE)
    cold.write_bytes(data)


def damage_the_header(cold: Path) -> None:
    fold(cold)
    scribble(cold, 0)


def damage_everything_else(cold: Path) -> None:
    fold(cold)
    scribble(cold, *range(1, cold.stat().st_size // PAGE))


def damage_what_is_decided(cold: Path) -> None:
    fold(cold)
    with closing(sqlite3.connect(cold)) as db:
        roots = db.execute("SELECT name, rootpage FROM sqlite_schema").fetchall()
    scribble(cold, *(root - 1 for name, root in roots if name in TABLES))


LOSSES: Final = (delete, damage_the_header, damage_everything_else, damage_what_is_decided)


def config(directory: Path, *, delivers: bool) -> dict[str, Any]:
    handler = {"type": "file", "path": str(directory / "out.jsonl")}
    return {"queues": {"crm": {"handler": handler, "is_active": delivers}}}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with running(Host(tmp_path, config(tmp_path, delivers=False))) as host:
        yield host


def stage(client: Client, write: bytes, *payloads: str) -> Sealed:
    part = client.stage(write)
    for payload in payloads:
        part.submit(
            encode_run([payload.encode()], queue="crm", headers={WRITE_HEADER: write.hex()})
        )
    return part.seal()


def delivered(directory: Path) -> Counter[str]:
    lines = (directory / "out.jsonl").read_text().splitlines()
    return Counter(json.loads(line)["payload"] for line in lines)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_what_was_published_is_delivered_once(
    lose: Callable[[Path], None], host: Host, tmp_path: Path
) -> None:
    published, still_open, replay = new_write_id(), new_write_id(), new_write_id()
    rows = [f"row {number}" for number in range(50)]
    with connect(host.socket, HANG_S) as client:
        parts = [stage(client, published, *rows[at : at + 10]).stage for at in range(0, 50, 10)]
        stage(client, published, "of a task that was run twice")
        sealed = stage(client, still_open, "published later")
        done = client.publish(published, parts, app="feed", version=7)
        host.stop(signal.SIGKILL)
    lose(host.state_dir / COLD)

    host.config.write_text(
        json.dumps(json.loads(host.config.read_text()) | config(tmp_path, delivers=True))
    )
    host.start()
    host.until_books({"accepted": 50, "delivered": 50, "staged": 1})
    assert delivered(tmp_path) == Counter(rows)
    # Damage that was found while the daemon ran is put right by the next start.
    host.stop()
    host.start()
    with connect(host.socket, HANG_S) as client:
        assert client.publish(published, parts, app="feed", version=7) == done
        again = client.publish(replay, [stage(client, replay, *rows).stage], app="feed", version=7)
        assert (again.outcome, again.write) == ("duplicate", published)
        assert client.publish(still_open, [sealed.stage], app="feed", version=8).items == 1
        receipt = client.receipt(published)
        assert (receipt.accepted, receipt.delivered, receipt.pending) == (50, 50, 0)
    host.until_books({"accepted": 51, "delivered": 51})

    def all_once() -> None:
        assert delivered(tmp_path) == Counter([*rows, "published later"])

    eventually_sync(all_once)
