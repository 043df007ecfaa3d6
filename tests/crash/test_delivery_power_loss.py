"""The power goes while items are handed over, promoted, retried and buried.

What was not synced is gone, or there in part, in the journal and in the cold store, each as its
own disk would have it. What was acknowledged is delivered, dead or held all the same, and what is
handed over is never lost between the two: the one had it durable before the other let go.

Delivered items may come again if that was recorded less than a second ago; nothing else may.
"""

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.crash.delivery_world import DeliveryWorld, Tally
from tests.crash.lives import Zygote
from tests.crash.powerless import PLAN

WORLDS: Final = 2
CUTS: Final = 14


@pytest.mark.parametrize("number", range(WORLDS))
def test_what_was_acknowledged_survives_power_loss(
    number: int, zygote: Zygote, tmp_path: Path
) -> None:
    tally = Tally()
    with closing(DeliveryWorld(f"power {number}", zygote, tmp_path, tally)) as world:
        rng = world.rng
        for cut in range(CUTS):
            steps = rng.randrange(1, rng.choice((20, 100, 500)))
            world.live_and_die(f"{PLAN}:{steps}:{cut}", drains=rng.random() < 0.6)
        world.drain()
        world.sum_up()
    print(tally)
    assert tally.kills[PLAN] >= CUTS // 2
    assert tally.dead
    assert tally.from_cold
