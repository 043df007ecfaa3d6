"""Priorities as people write them: a number, 0 to 255, or a label.

Labels are the daemon's (`priorities` in its configuration), so only the daemon knows what one
means. A number is used as it is, without a request.
"""

from collections.abc import Callable, Mapping

from forebay.errors import BadRun
from forebay.limits import PRIORITY_MAX

Labels = Mapping[str, int]
"""The number of each label."""


def read_number(text: str) -> int | None:
    """The priority that is written as a number; None: it must be a label."""
    if text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= PRIORITY_MAX:
        return int(text)
    return None


def resolve(given: int | str, labels: Callable[[], Labels]) -> int:
    """The number of a priority; `labels` are asked for only if it is not given as one. BadRun for
    a label that there is not."""
    number = given if isinstance(given, int) else read_number(given)
    if number is not None:
        return number
    known = labels()
    found = known.get(str(given))
    if found is None:
        raise BadRun(f"there is no priority {given!r}: {possible(known)}")
    return found


def possible(labels: Labels) -> str:
    """What a priority may be, for people."""
    listed = ", ".join(f"{label} ({number})" for label, number in in_order(labels))
    return f"0 to {PRIORITY_MAX}, or a label that the daemon knows: {listed or 'it knows none'}"


def in_order(labels: Labels) -> list[tuple[str, int]]:
    """The most urgent first."""
    return sorted(labels.items(), key=lambda pair: (pair[1], pair[0]))
