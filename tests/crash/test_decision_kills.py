"""SIGKILL around the cold store's decisions about writes, and a cold store that is gone afterwards.

The worlds are those of test_staging_crash.py, which kill the journal. Here the daemon dies before,
in the middle of and after the transaction that decides; and between two lives the cold store may be
deleted, or set back to what it was some lives ago. What was answered is so all the same.
"""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.killing_cold import WRITE_POINTS
from tests.crash.lives import Zygote
from tests.crash.seeds import EFFORT
from tests.crash.staging_driver import PUBLISHED
from tests.crash.test_staging_crash import HOLD, World

SPOOLS: Final = EFFORT
ROUNDS: Final = 4
COLD: Final = "cold.sqlite"
KEPT, DELETED, SET_BACK = "kept", "deleted", "set back"


@pytest.mark.parametrize("spool", range(SPOOLS))
def test_writes_are_whole_or_not_there_after_a_kill_in_a_decision(
    spool: int, zygote: Zygote, tmp_path: Path
) -> None:
    with closing(World(f"decision kills {spool}", zygote, tmp_path)) as world:
        deaths = [f"{point}:{count}" for point in WRITE_POINTS for count in (1, 4)]
        world.rng.shuffle(deaths)
        world.live_and_die("")
        for death in deaths:
            world.live_and_die(death)
        world.drain()
        print(world.summary())
        assert not [point for point in WRITE_POINTS if not world.deaths[point]]


@pytest.mark.parametrize("spool", range(SPOOLS))
def test_what_is_published_outlives_the_cold_store(
    spool: int, zygote: Zygote, tmp_path: Path
) -> None:
    with closing(LossyWorld(f"cold losses {spool}", zygote, tmp_path)) as world:
        world.live_and_die("")
        losses = [KEPT, KEPT, DELETED, SET_BACK] * ROUNDS
        world.rng.shuffle(losses)
        for loss in losses:
            point = world.rng.choice((*WRITE_POINTS, "after_record_sync", ""))
            world.live_and_die(f"{point}:{world.rng.randrange(1, 9)}" if point else "")
            world.lose(loss)
        world.drain()
        print(world.summary())
        assert world.found[PUBLISHED, PUBLISHED]


class LossyWorld(World):
    """Everything is delivered at once: rows that the cold store owns would go with it."""

    def lose(self, loss: str) -> None:
        copies = self._directory / "copies"
        copy = copies / f"{len(list(copies.glob('*'))):03}"
        copy.mkdir(parents=True)
        for file in self._state.glob(f"{COLD}*"):
            shutil.copyfile(file, copy / file.name)
            if loss != KEPT:
                file.unlink()
        if loss == SET_BACK:
            for file in self.rng.choice(sorted(copies.iterdir())).iterdir():
                shutil.copyfile(file, self._state / file.name)

    def _settings(self, *, drains: bool) -> dict[str, Any]:
        settings = super()._settings(drains=True)
        settings["queues"][HOLD]["warm_max_items"] = 1_000_000
        return settings
