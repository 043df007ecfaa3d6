"""Cursors of looks and of history, as clients give them back: numbers, which must fit a store's."""

import re
from typing import Final

NUMBER_MAX: Final = 2**63 - 1
"""What SQLite and PostgreSQL can compare a row's number with."""

_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def read_number(text: str) -> int:
    """ValueError if it is not a number that a store has."""
    if not _NUMBER.fullmatch(text) or int(text) > NUMBER_MAX:
        raise ValueError("not a cursor of a look")
    return int(text)


def read_pair(cursor: str) -> tuple[int, int]:
    """The numbers of `A-B`; ValueError if it is not of that form."""
    first, _, second = cursor.partition("-")
    return read_number(first), read_number(second)
