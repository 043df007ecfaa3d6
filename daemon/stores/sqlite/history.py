"""What is kept of a step that is run again because the disk is full: nothing."""

from collections.abc import Iterator

from actors.model.finished import Keeps, keep_nothing


def tries(keeps: Keeps) -> Iterator[Keeps]:
    """What is kept at a step's first try, and at further ones."""
    yield keeps
    while True:
        yield keep_nothing
