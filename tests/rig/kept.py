"""Documents that are kept as long as a test runs, and in its memory alone."""

from typing import TypeVar

from actors.config.book import Kept

T = TypeVar("T")


def kept_in_memory(value: T) -> Kept[T]:
    async def write(_: T) -> None:
        """The value is in the document already."""

    return Kept(value, write)
