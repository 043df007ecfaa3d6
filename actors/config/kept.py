"""Documents that are kept across restarts, read entry by entry.

An entry that cannot be read must neither keep the daemon from starting nor invalidate the other
entries. It is left out and described in `rejected`; the file's loader then keeps a copy of the
whole document (daemon/state/kept_file.py).
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

VERSION: Final = 1
SHOWN_MAX: Final = 200


class Kept(NamedTuple, Generic[T]):
    """What was read at the start, and how to keep a new value durably."""

    value: T
    save: Callable[[T], Awaitable[None]]


def read_document(text: str) -> dict[str, Any]:
    """Raises ValueError if it is not a document of this version."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(f"it is not a document of version {VERSION}")
    return content


def members(content: dict[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    """The members of an object in the document; raises ValueError if there is no such object."""
    found = content.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not an object")
    return found.items()


def elements(content: dict[str, Any], name: str) -> Iterable[Any]:
    """The elements of a list in the document; raises ValueError if there is no such list."""
    found = content.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} is not a list")
    return found


def readable(entries: Iterable[Any], read: Callable[..., T], rejected: list[str]) -> Iterable[T]:
    """The results of `read`, which gets each entry as its arguments."""
    for entry in entries:
        try:
            yield read(*entry)
        except Exception as problem:
            rejected.append(f"{str(entry)[:SHOWN_MAX]}: {problem}")
