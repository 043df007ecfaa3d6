"""SIGKILL at named points and at random moments, under load: after each, the books balance.

A spool lives through many daemons, one after the other; each is killed at another point, some of
them while they recover from the kill before. After every death a copy of the spool is recovered
and read: what was acknowledged is delivered or held, what is held is what was sent, and nothing
that was settled is delivered again. At the end of its life a spool is drained, and then every
count is exact.
"""

import signal
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from actors.config.settings import Settings
from actors.model.books import Totals
from tests.crash import reconciled
from tests.crash.audit import Audit
from tests.crash.destinations import FileDestination
from tests.crash.found import look_into
from tests.crash.killing_files import (
    CLOSING_POINTS,
    FREEING_POINTS,
    POINTS,
    RECOVERY_POINTS,
    REWRITE_POINTS,
    ROTATION_POINTS,
    SERVING_POINTS,
)
from tests.crash.lives import Life, Zygote
from tests.crash.producer import Died, Producer
from tests.crash.seeds import EFFORT, seeded

SPOOLS: Final = EFFORT
KILLS_MIN: Final = 35 * EFFORT
RUNS_PER_LIFE_MAX: Final = 400
RANDOM_MOMENTS: Final = 4
TRIES_MAX: Final = 20

AFTER: Final = {
    "mid_block_write": "mid_quarantine_write",
    "before_recycle_rename": "before_recovery_unlink",
    "after_checkpoint_rename": "before_recovery_unlink",
    "before_index_rename": "mid_recovery_index_write",
}
"""What a recovery does depends on how the daemon before it died."""

OUT, HOLD, RING = "out", "hold", "ring"


@dataclass
class Tally:
    """What all spools went through together."""

    spools: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    delivered_again: int = 0
    dropped: int = 0


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.mark.parametrize("spool", range(SPOOLS))
def test_books_balance_after_every_kill(
    spool: int, zygote: Zygote, tally: Tally, tmp_path: Path
) -> None:
    with closing(World(seeded("kills", spool), zygote, tmp_path, tally)) as world:
        for death in plan_deaths(world.rng, spool):
            world.live_and_die(death)
        world.drain()
    tally.spools += 1


@pytest.mark.sums_up
def test_kills_were_many_and_at_every_point(zygote: Zygote, tally: Tally, tmp_path: Path) -> None:
    if tally.spools < SPOOLS:
        pytest.skip("only together with all of the spools")
    world = World(seeded("kills", SPOOLS), zygote, tmp_path, tally)
    world.live_and_die("")
    for _ in range(TRIES_MAX):
        # Chance decides whether a daemon comes to its point before the load ends.
        for point in [point for point in POINTS if not tally.kills[point]]:
            for before in [before for before, after in AFTER.items() if after == point]:
                world.live_and_die(f"{before}:1")
            world.live_and_die(f"{point}:1")
    world.drain()
    print(f"{tally.kills.total()} kills: {dict(tally.kills)}")
    print(
        f"{tally.delivered} items delivered, {tally.delivered_again} of them again, "
        f"{tally.dropped} dropped"
    )
    assert tally.kills.total() >= KILLS_MIN
    assert tally.dropped
    assert not [point for point in POINTS if not tally.kills[point]]


def plan_deaths(rng: Random, spool: int) -> list[str]:
    """The points for one spool, as `point:n`: half of those that a serving daemon reaches, and
    all others. Nothing: at a random moment."""
    frequent = SERVING_POINTS[spool % 2 :: 2]
    rare = ROTATION_POINTS[spool % 2 :: 2]
    once = (*FREEING_POINTS, *CLOSING_POINTS, *RECOVERY_POINTS, *REWRITE_POINTS)
    deaths = [f"{point}:{rng.choice((1, 2, 5, 20))}" for point in frequent]
    deaths += [f"{point}:{rng.choice((1, 2))}" for point in rare]
    deaths += [f"{point}:1" for point in once]
    deaths += [""] * RANDOM_MOMENTS
    rng.shuffle(deaths)
    planned = []
    for death in deaths:
        planned.append(death)
        follower = AFTER.get(death.partition(":")[0])
        if follower is not None:
            planned.append(f"{follower}:1")
    return planned


class World:
    def __init__(self, rng: Random, zygote: Zygote, directory: Path, tally: Tally) -> None:
        self.rng = rng
        self._zygote = zygote
        self._directory = directory
        self._tally = tally
        self._state = directory / "state"
        self._outputs = {queue: directory / f"{queue}.jsonl" for queue in (OUT, HOLD, RING)}
        self._producer = Producer(rng, (OUT, OUT, OUT, OUT, OUT, HOLD, RING, RING))
        destinations = {queue: FileDestination(path) for queue, path in self._outputs.items()}
        self._audit = Audit(self._producer, destinations, RING)
        self._is_full = False

    def close(self) -> None:
        self._producer.close()

    def live_and_die(self, death: str) -> None:
        rng = self.rng
        point = death.partition(":")[0]
        if point in REWRITE_POINTS:
            self._behead()
        drains = self._is_full or point in FREEING_POINTS or rng.random() < 0.3
        life = self._start(self._settings(drains=drains), death)
        try:
            self._producer.connect(self._directory / "socket")
            self._compare_with_copy()
            runs = rng.randrange(5, 100) if point in ("", *CLOSING_POINTS) else RUNS_PER_LIFE_MAX
            self._producer.push(runs, window=rng.choice((1, 8, 32)))
            if point in CLOSING_POINTS:
                life.kill(signal.SIGTERM)
                self._producer.wait_for_the_end()
            elif point:
                self._producer.ask_often()
        except Died:
            killed_at = point
        else:
            life.kill()
            killed_at = "a random moment"
        if self._end(life) == 0:
            # It had stored nothing, and so there was nothing to seal.
            assert point in CLOSING_POINTS, life.log_text()
        else:
            self._tally.kills[killed_at] += 1
        self._is_full = self._producer.refusals_now > 0

    def drain(self) -> None:
        """The last life: every queue has a handler, and the daemon stops when it is told to."""
        life = self._start(self._settings(drains=True) | {"http": {"listen": "127.0.0.1:0"}}, "")
        self._producer.connect(self._directory / "socket")
        self._producer.settle()
        self._producer.wait_until_drained()
        reconciled.check(self._state, self._producer.stats())
        life.kill(signal.SIGTERM)
        assert self._end(life) == 0
        self._audit.at_the_end()
        self._tally.delivered += len(self._audit.delivered)
        self._tally.delivered_again += self._audit.delivered_again
        self._tally.dropped += self._audit.found.books.get(RING, Totals()).dropped

    def _start(self, settings: dict[str, Any], plan: str) -> Life:
        self._now = Settings.model_validate(settings)
        return self._zygote.start(settings, plan, self._directory / "daemon.log")

    def _end(self, life: Life) -> int:
        status = life.wait()
        self._producer.close()
        assert status in (0, -signal.SIGKILL), life.log_text()
        copy = self._directory / "copy"
        self._audit.after_death(look_into(self._state, self._now.spool, copy))
        return status

    def _compare_with_copy(self) -> None:
        """What the daemon recovered is what the copy of its spool gave."""
        report = self._producer.stats()
        for queue, totals in self._audit.found.books.items():
            entry = report["queues"][queue]
            assert entry["accepted"] == totals.accepted
            assert entry["dropped"] == totals.dropped
            assert entry["accepted"] == entry["delivered"] + entry["dropped"] + entry["held"]
            parts = ("spooled", "scheduled", "warm", "cold", "running")
            assert entry["held"] == sum(entry[part] for part in parts)
            assert min(entry.values()) >= 0

    def _behead(self) -> None:
        """Damages the head of the newest chunk and loses its index; no block is hit."""
        chunks = sorted(self._state.glob("spool/*.chunk"))
        for chunk in chunks[-2:]:
            with chunk.open("r+b") as file:
                file.write(bytes(64))
            chunk.with_suffix(".index").unlink(missing_ok=True)

    def _settings(self, *, drains: bool) -> dict[str, Any]:
        rng = self.rng
        handlers = {
            queue: {"handler": {"type": "file", "path": str(path)}}
            for queue, path in self._outputs.items()
            if drains or queue == OUT
        }
        policies: dict[str, dict[str, Any]] = {
            OUT: {"full_policy": "drop_newest"},
            HOLD: {"full_policy": "block", "full_timeout": "0s"},
            RING: {"full_policy": "drop_oldest", "full_timeout": "0s"},
        }
        return {
            "socket": {"path": str(self._directory / "socket"), "max_run_bytes": "16Ki"},
            "state_dir": str(self._directory / "state"),
            "spool": {
                "chunk_size": rng.choice(("64Ki", "64Ki", "128Ki")),
                "max_bytes": "64Mi",
                "max_size": 120,
                "min_free_bytes": "0",
                "ballast_bytes": "64Ki",
                "meta_sync_interval": "10ms",
                "inmemory_runs": rng.choice((4, 64, 2048)),
                "spare_chunks": rng.choice((0, 1, 2)),
                "compression": rng.choice(("snappy", "none")),
            },
            "queues": {queue: policies[queue] | handlers.get(queue, {}) for queue in policies},
            "log": {"format": "json"},
            "drain_timeout": "60s",
        }
