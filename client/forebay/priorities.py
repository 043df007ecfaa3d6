"""Priorities as people write them: a number, 0 to 255, or a label.

The daemon's configuration defines the labels (`priorities`), so only the daemon knows their
numbers. A number needs no request.
"""

from collections.abc import Callable, Mapping

from forebay.errors import BadRun
from forebay.limits import PRIORITY_MAX

Labels = Mapping[str, int]
"""The number of each label."""


def read_number(text: str) -> int | None:
    """The priority that is written as a number; None if it must be a label."""
    if text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= PRIORITY_MAX:
        return int(text)
    return None


def resolve(given: int | str, labels: Callable[[], Labels]) -> int:
    """The number of a priority; calls `labels` only if it is given as a label. BadRun if there is
    no such label."""
    number = given if isinstance(given, int) else read_number(given)
    if number is not None:
        return number
    known = labels()
    found = known.get(str(given))
    if found is None:
        raise BadRun(f"there is no priority {given!r}: use {possible(known)}")
    return found


def possible(labels: Labels) -> str:
    """The possible priorities, for messages."""
    listed = ", ".join(f"{label} ({number})" for label, number in in_order(labels))
    return f"0 to {PRIORITY_MAX}, or a label that the daemon knows: {listed or 'it knows none'}"


def in_order(labels: Labels) -> list[tuple[str, int]]:
    """Sorted by urgency, the most urgent first."""
    return sorted(labels.items(), key=lambda pair: (pair[1], pair[0]))
