"""The randomness of a test comes from one number, which is printed and can be set as FOREBAY_SEED.

FOREBAY_TEST_EFFORT multiplies the number of random cases; `make test-all` sets it.
"""

import os
import random
from typing import Final

SEED_DEFAULT: Final = 1
EFFORT: Final = int(os.environ.get("FOREBAY_TEST_EFFORT", "1"))


def seeded(*parts: object) -> random.Random:
    """A source of chance for this test, the same whenever the seed and the parts are.

    The line is shown by `pytest -s`, and with the report of a test that fails.
    """
    seed = int(os.environ.get("FOREBAY_SEED", SEED_DEFAULT))
    print(f"FOREBAY_SEED={seed}", *parts)
    return random.Random(f"{seed}/{'/'.join(map(str, parts))}")
