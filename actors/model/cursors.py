"""Cursors of looks and of the history, as clients return them: numbers in a store's range."""

import re
from typing import Final

NUMBER_MAX: Final = 2**63 - 1
"""The largest row number that SQLite and PostgreSQL can compare."""

_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def read_number(text: str) -> int:
    """Raises ValueError if it is not a number in a store's range."""
    if not _NUMBER.fullmatch(text) or int(text) > NUMBER_MAX:
        raise ValueError("not a cursor of a look")
    return int(text)


def read_pair(cursor: str) -> tuple[int, int]:
    """The numbers of `A-B`; raises ValueError for any other form."""
    first, _, second = cursor.partition("-")
    return read_number(first), read_number(second)
