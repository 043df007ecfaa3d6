"""An acknowledgement that was answered holds, whatever happens to the daemon a moment later.

A consumer acknowledges items of the journal, rows of the cold store, and items of a delayed queue
by lock, over the socket and over REST. The daemon is killed, or loses its power, right after an
answer; the next one never delivers these items again. At the end all others are delivered.
"""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from forebay import connect
from tests.crash import powerless
from tests.crash.acker import Acker
from tests.crash.lives import Life, Zygote
from tests.crash.producer import ANSWER_S, Died
from tests.crash.seeds import EFFORT, seeded
from tests.eventually import eventually_sync

KILLS: Final = 13 * EFFORT
POWER_CUTS: Final = 8 * EFFORT
JOURNAL, COLD, DELAYED = "journal", "cold", "delayed"
QUEUES: Final = (JOURNAL, COLD, DELAYED)
ITEMS: Final = 12 * max(KILLS, POWER_CUTS)
"""In each queue: more than all lives take."""
WARM: Final = 5
"""Room of the queue whose items are nearly all rows of the cold store."""


class World:
    def __init__(self, name: str, zygote: Zygote, directory: Path) -> None:
        self.rng = seeded(name)
        self._zygote = zygote
        self._directory = directory
        self._state = directory / "state"
        self.acker = Acker(self.rng)
        self.pushed = 0

    @property
    def socket(self) -> Path:
        return self._directory / "socket"

    def start(self, plan: str = "", http: str | None = None) -> Life:
        settings: dict[str, Any] = {
            "socket": {"path": str(self.socket), "max_run_bytes": "16Ki"},
            "state_dir": str(self._state),
            "http": {"listen": http},
            "spool": {"chunk_size": "256Ki", "min_free_bytes": "0", "spare_chunks": 1},
            "queues": {
                JOURNAL: {"warm_max_items": 10**6},
                COLD: {"warm_max_items": WARM},
                DELAYED: {"unique": "replace"},
            },
            "log": {"format": "json"},
        }
        life = self._zygote.start(settings, plan, self._directory / "daemon.log")
        assert self.socket.exists(), life.log_text()
        return life

    def fill(self) -> None:
        """The first life: everything is pushed, and what does not fit has moved to cold."""
        life = self.start()
        with connect(self.socket, ANSWER_S) as client:
            for queue in (JOURNAL, COLD):
                left = ITEMS
                while left:
                    items = min(left, self.rng.choice((1, 2, 10)))
                    client.push(queue, [os.urandom(20) for _ in range(items)])
                    left -= items
            client.delayed(DELAYED).offer_many([(f"key {at}", b"x", 1) for at in range(ITEMS)])

            def has_moved() -> None:
                counts = client.stats()["queues"]
                assert counts[COLD]["cold"] >= ITEMS - 2 * WARM, counts
                assert counts[JOURNAL]["cold"] == 0, counts

            eventually_sync(has_moved)
        life.kill()
        assert life.wait() == -signal.SIGKILL

    def work(self, http: str = "") -> None:
        self.acker.work(self.socket, pulled=(JOURNAL, COLD), by_lock=(DELAYED,), http=http)

    def address(self) -> str:
        return (self._state / "http.address").read_text().strip()

    def find_what_is_left(self) -> None:
        """What a power cut has left is the state of the next life."""
        shutil.rmtree(self._state)
        powerless.remains_of(self._state).rename(self._state)

    def drain(self) -> None:
        """The last life: every other item is delivered, and the books know."""
        acked = set(self.acker.acked)
        life = self.start()
        with connect(self.socket, ANSWER_S) as client:
            found: set[str] = set()

            def is_drained() -> None:
                for queue in QUEUES:
                    found.update(self.acker.drain(self.socket, queue))
                held = {queue: client.stats()["queues"][queue]["held"] for queue in QUEUES}
                assert not any(held.values()), held

            eventually_sync(is_drained)
        assert not found & acked
        # Of others the acknowledgement was taken, and its answer was lost.
        assert len(found | acked) <= len(QUEUES) * ITEMS
        life.kill(signal.SIGTERM)
        assert life.wait() == 0, life.log_text()


def test_what_was_acknowledged_before_a_kill_never_comes_again(
    zygote: Zygote, tmp_path: Path
) -> None:
    world = World("acks", zygote, tmp_path)
    world.fill()
    for kill in range(KILLS):
        life = world.start(http="127.0.0.1:0" if kill % 4 == 0 else None)
        world.work(world.address() if kill % 4 == 0 else "")
        life.kill()
        assert life.wait() == -signal.SIGKILL
    assert world.acker.answers >= 4 * KILLS
    world.drain()


def test_what_was_acknowledged_before_a_power_cut_never_comes_again(
    zygote: Zygote, tmp_path: Path
) -> None:
    world = World("acks without power", zygote, tmp_path)
    world.fill()
    for cut in range(POWER_CUTS):
        life = world.start(f"{powerless.PLAN}:{world.rng.randrange(20, 60)}:{cut}")
        with suppress(Died):
            while True:
                world.work()
        assert life.wait() == -signal.SIGKILL
        world.find_what_is_left()
    assert world.acker.answers >= POWER_CUTS
    world.drain()
