"""A full disk with the cold store in use: overflow stays where it is, outcomes are recorded still.

The disk is a tmpfs that somebody else fills up when there are rows in cold. Nobody reads the
destination until then. What is refused is new work alone: everything that is stored drains, what
must die is buried, and when there is room again, pushes are taken again.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from actors.catalogue import Definitions
from actors.settings import Settings
from daemon.cold.sqlite import BALLAST_BYTES
from daemon.definitions import load_definitions, saver
from tests.crash import flaky
from tests.crash.audit import Audit
from tests.crash.destinations import Destination, FileDestination, FlakyDestination
from tests.crash.found import look_into
from tests.crash.lives import Zygote
from tests.crash.producer import Producer
from tests.crash.seeds import seeded
from tests.crash.small_disk import SlowReader, fill_up, small_disk

DISK_BYTES: Final = 3 * BALLAST_BYTES
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
    producer.ask({"op": "queue.pause", "queue": FLAKY})
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
    producer.ask({"op": "queue.resume", "queue": FLAKY})
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


async def test_a_queue_is_paused_and_resumed_on_a_disk_without_a_byte_of_room(disk: Path) -> None:
    save = saver(disk)
    await save(Definitions(paused=frozenset({(OUT, None)})))
    fill_up(disk)
    both = frozenset({(OUT, None), (FLAKY, None)})
    await save(Definitions(paused=both))
    assert load_definitions(disk).paused == both
    # The room that was given up is there for the next time as well.
    await save(Definitions())
    assert load_definitions(disk) == Definitions()


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
            OUT: {"handler": {"type": "file", "path": str(pipe)}, "warm_max_items": 20},
            FLAKY: flaky.SETTINGS,
        },
        "log": {"format": "json"},
    }
