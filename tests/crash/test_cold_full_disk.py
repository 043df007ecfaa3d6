"""A full disk with the cold store in use: overflow stays where it is, outcomes are recorded still.

The disk is a tmpfs that somebody else fills up when there are rows in cold. Nobody reads the
destination until then. What is refused is new work alone: everything that is stored drains, what
must die is buried, and when there is room again, pushes are taken again.
"""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from actors.config.catalogue import Definitions
from actors.config.settings import Settings
from actors.ports.tiers import ColdTotals, RowOutcome, StoreUnavailable
from daemon.state.kept_file import QUEUES, QUEUES_BALLAST_BYTES, KeptFile
from daemon.stores.open import open_stores
from daemon.stores.sqlite.store import BALLAST_BYTES, SqliteCold
from forebay import connect
from forebay.errors import ForebayError, Refused
from tests.conformance.cold_stores import dead_row, new_row
from tests.crash import flaky
from tests.crash.audit import Audit
from tests.crash.destinations import Destination, FileDestination, FlakyDestination
from tests.crash.found import look_into
from tests.crash.lives import Zygote
from tests.crash.producer import Producer
from tests.crash.seeds import seeded
from tests.crash.small_disk import KIB, MIB, SlowReader, fill_up, small_disk
from tests.eventually import eventually_sync

DISK_BYTES: Final = 3 * BALLAST_BYTES
LEFT_BYTES: Final = 2 * MIB
PUSHES_MAX: Final = 20_000
OUT, FLAKY = "out", "flaky"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as path:
        yield path


@pytest.mark.parametrize("min_free", ["0", "1Mi"])
def test_full_disk_refuses_drains_buries_and_takes_again(
    min_free: str, disk: Path, zygote: Zygote, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = seeded("full disk with cold", min_free)
    reader = SlowReader(tmp_path)
    producer = Producer(rng, (OUT, OUT, FLAKY), may_refuse=("DISK_FULL",))
    request.addfinalizer(producer.close)
    destinations: dict[str, Destination] = {
        OUT: FileDestination(reader.output),
        FLAKY: FlakyDestination(tmp_path / flaky.NAME),
    }
    audit = Audit(producer, destinations)
    settings = make_settings(disk, tmp_path, reader.pipe, min_free)
    life = zygote.start(settings, "", tmp_path / "daemon.log")
    producer.connect(tmp_path / "socket")
    producer.ask({"op": "queues.pause", "queue": FLAKY})
    producer.push(300, window=8)
    producer.settle()
    wait_until(producer, lambda queues: queues[OUT]["cold"] > 100 and not queues[OUT]["spooled"])
    assert (disk / "state" / "cold.sqlite.ballast").stat().st_size == BALLAST_BYTES

    filler = fill_up(disk)
    pushes = 0
    while not producer.refusals_now:
        producer.push(1, window=8)
        pushes += 1
        assert pushes < PUSHES_MAX, "the disk does not get full"
    producer.settle()
    producer.ask({"op": "queues.resume", "queue": FLAKY})
    must_die, come_later = fates(producer)
    assert must_die
    assert come_later
    wait_until(producer, lambda queues: queues[FLAKY]["dead"] == len(must_die))

    reader.read_on()
    wait_until(producer, lambda queues: queues[OUT]["held"] == 0)
    wait_until(producer, lambda queues: queues[FLAKY]["held"] == len(come_later))
    filler.unlink()
    producer.refusals_now = 0
    known = len(producer.acked)
    while len(producer.acked) == known:
        producer.push(1, window=1)
        producer.settle()
        pushes += 1
        assert pushes < PUSHES_MAX, "the disk is never taken for free again"
    must_die, come_later = fates(producer)
    wait_until(producer, lambda queues: queues[OUT]["held"] == 0)
    wait_until(producer, lambda queues: queues[FLAKY]["held"] == len(come_later))

    life.kill(signal.SIGTERM)
    assert life.wait() == 0, life.log_text()
    producer.close()
    reader.finish()
    spool_settings = Settings.model_validate(settings).spool
    audit.after_death(look_into(disk / "state", spool_settings, tmp_path / "copy"))
    assert audit.delivered_again == 0
    assert audit.found.live.keys() == come_later
    assert audit.found.dead.keys() == must_die
    events = [event["event"] for event in life.events()]
    assert "spooler.disk_low" in events or "spooler.disk_refuses" in events


def test_disk_that_forebay_itself_has_filled_is_free_again_when_all_is_delivered(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The log and the free pages of the cold store, and chunks that hold nothing, are given back:
    what is left of them must not keep pushes out for ever."""
    with small_disk(tmp_path / "disk", 4 * BALLAST_BYTES) as disk:
        reader = SlowReader(tmp_path)
        settings = make_settings(disk, tmp_path, reader.pipe, "128Mi")
        settings["spool"] |= {"chunk_size": "16Mi", "ballast_bytes": "1Mi"}
        settings["socket"]["max_run_bytes"] = "1Mi"
        life = zygote.start(settings, "", tmp_path / "daemon.log")
        # Full for two seconds is full.
        with connect(tmp_path / "socket", timeout=2, wait=60) as client:

            def push() -> None:
                client.push(OUT, [os.urandom(100 * KIB) for _ in range(5)])

            def books() -> dict[str, int]:
                found: dict[str, int] = client.stats()["queues"][OUT]
                return found

            with suppress(Refused):
                while True:
                    push()
            assert books()["cold"]
            reader.read_on()
            eventually_sync(lambda: books()["held"] == 0, deadline_s=300)
            before = books()["accepted"]
            eventually_sync(push, errors=(ForebayError,), deadline_s=120)
            eventually_sync(lambda: books()["held"] == 0, deadline_s=120)
            # What the client was refused before, or gave up waiting for, it may have sent as well.
            assert books()["accepted"] >= before + 5
            assert books()["delivered"] == books()["accepted"]
        life.kill(signal.SIGTERM)
        assert life.wait() == 0, life.log_text()
        reader.finish()


async def test_a_queue_is_paused_and_resumed_on_a_disk_without_a_byte_of_room(disk: Path) -> None:
    file = KeptFile(disk / QUEUES, Definitions(), QUEUES_BALLAST_BYTES)
    await file.save(Definitions(paused=frozenset({(OUT, None)})))
    fill_up(disk)
    both = frozenset({(OUT, None), (FLAKY, None)})
    await file.save(Definitions(paused=both))
    assert file.load().paused == both
    # The room that was given up is there for the next time as well.
    await file.save(Definitions())
    assert file.load() == Definitions()


async def test_overflow_leaves_room_in_which_the_rest_is_settled_and_buried(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "little", 3 * LEFT_BYTES) as disk:
        cold = SqliteCold(disk / "cold.sqlite", 5.0, ballast_bytes=0)
        cold.leave_free(LEFT_BYTES)
        await cold.open()
        rows = [row async for row in overflow(cold)]
        # It looks before it writes, so that the last one took a little of it.
        assert LEFT_BYTES // 2 < shutil.disk_usage(disk).free < LEFT_BYTES
        dead = dead_row()
        await cold.store([dead])
        await cold.confirm([*rows, dead.row])
        lock = bytes(16)
        acquired = await cold.acquire("q", lock, len(rows), 3 * LEFT_BYTES, 60.0)
        assert [row.row for row in acquired] == rows
        assert all(await cold.settle([RowOutcome(row, lock, delivered=1) for row in rows]))
        books = ColdTotals(taken=len(rows) + 1, delivered=len(rows), dead=1)
        assert await cold.totals() == {"q": books}
        await cold.close()


async def overflow(cold: SqliteCold) -> AsyncIterator[bytes]:
    """Stores runs until none is taken any more; their rows."""
    with suppress(StoreUnavailable):
        while True:
            row = new_row(1, payload=bytes(64 * KIB), compressed=False)
            await cold.store([row])
            yield row.row


@pytest.mark.parametrize("most", ["min_free_bytes", "ballast_bytes"])
async def test_overflow_leaves_what_the_spool_needs(
    most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(SqliteCold, "leave_free", lambda _, size: left.append(size))
    spool = {"min_free_bytes": "1Mi", "ballast_bytes": "1Mi"} | {most: "2Mi"}
    settings = Settings.model_validate({"state_dir": tmp_path, "spool": spool})
    async with open_stores(settings):
        assert left == [2 * MIB]


def fates(producer: Producer) -> tuple[set[str], set[str]]:
    """Of what was stored: what must die, and what comes much later: it waits in cold, or in
    memory until cold has room for it."""
    stored = {item for item in producer.acked if producer.queue_of[item] == FLAKY}
    later = {item for item in stored if flaky.temper_of(item).later}
    return {item for item in stored - later if flaky.temper_of(item).dies}, later


def wait_until(producer: Producer, is_so: Callable[[Any], bool]) -> None:
    producer.wait_until(lambda stats: is_so(stats["queues"]))


def make_settings(disk: Path, directory: Path, pipe: Path, min_free: str) -> dict[str, Any]:
    return {
        "socket": {"path": str(directory / "socket"), "max_run_bytes": "16Ki"},
        "state_dir": str(disk / "state"),
        "spool": {
            "chunk_size": "256Ki",
            "min_free_bytes": min_free,
            "ballast_bytes": "128Ki",
            "inmemory_runs": 4,
        },
        "queues": {
            # The pipe is not read for as long as the test needs: a write must not time out.
            OUT: {
                "handler": {"type": "file", "path": str(pipe), "timeout": "1h"},
                "warm_max_items": 20,
            },
            FLAKY: flaky.SETTINGS,
        },
        "log": {"format": "json"},
    }
