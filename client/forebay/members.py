"""Members of a JSON object that came over the wire, with their types checked: BadFrame if one is
missing or is something else."""

from collections.abc import Mapping
from typing import Any

from forebay.errors import BadFrame

Members = Mapping[str, Any]


def number(members: Members, name: str) -> int:
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadFrame(f"{name} is not a whole number")
    return value


def number_in(members: Members, name: str, low: int, high: int, default: int) -> int:
    """`default` if it is missing."""
    value = members.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadFrame(f"{name} is not a whole number from {low} to {high}")
    return value


def number_or_none(members: Members, name: str) -> int | None:
    """None if it is null or missing."""
    return None if members.get(name) is None else number(members, name)


def text(members: Members, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str):
        raise BadFrame(f"{name} is missing, or is not a text")
    return value


def text_or_none(members: Members, name: str) -> str | None:
    """None if it is null or missing."""
    return None if members.get(name) is None else text(members, name)


def texts(members: Members, name: str) -> tuple[str, ...]:
    value = members.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadFrame(f"{name} is not a list of texts")
    return tuple(value)


def identifier(members: Members, name: str) -> bytes:
    """The id of a write or stage: 32 hexadecimal digits."""
    digits = text(members, name)
    try:
        value = bytes.fromhex(digits)
    except ValueError as problem:
        raise BadFrame(f"{name} is not an id") from problem
    if 2 * len(value) != len(digits) or len(value) != 16:
        raise BadFrame(f"{name} is not an id")
    return value
