"""A minute of torture, with another seed each time: `FOREBAY_SEED` repeats one."""

import os
from typing import Final

from tests.fleet.torture import new_seed, torture

SECONDS: Final = float(os.environ.get("FOREBAY_TORTURE_SECONDS", "60"))


def test_the_books_of_a_fleet_balance_whatever_happens_to_it() -> None:
    seed = new_seed()
    print(f"FOREBAY_SEED={seed}")
    print(torture(SECONDS, seed))
