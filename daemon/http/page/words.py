"""Formats figures for people in the first view, exactly like static/words.js.

Pure. tests/browser/test_words.py asks both for the same figures.
"""

from typing import Final

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
NOTHING: Final = "–"


def count(number: int) -> str:
    return f"{number:,}"


def age(ms: int | None) -> str:
    """`12 min`: one unit, rounded down, as one says it."""
    if ms is None:
        return NOTHING
    if ms < MINUTE_MS:
        return f"{max(0, ms) // SECOND_MS} s"
    if ms < HOUR_MS:
        return f"{ms // MINUTE_MS} min"
    if ms < 2 * DAY_MS:
        return f"{ms // HOUR_MS} h"
    return f"{ms // DAY_MS:,} days"
