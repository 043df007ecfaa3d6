"""Where the chance in a test comes from: one number, printed, and settable as FOREBAY_SEED."""

import os
import random
from typing import Final

SEED_DEFAULT: Final = 1


def seeded(*parts: object) -> random.Random:
    """A source of chance for this test, the same whenever the seed and the parts are.

    The line is shown by `pytest -s`, and with the report of a test that fails.
    """
    seed = int(os.environ.get("FOREBAY_SEED", SEED_DEFAULT))
    print(f"FOREBAY_SEED={seed}", *parts)
    return random.Random(f"{seed}/{'/'.join(map(str, parts))}")
