"""Ways to damage a file: bytes in, other bytes out."""

from collections.abc import Callable
from random import Random
from typing import Final

Damage = Callable[[bytes, int, int, Random], bytes]
"""(content, start, end, chance) to what is left of it. The part from start to end is not empty."""


def flip(data: bytes, start: int, end: int, rng: Random) -> bytes:
    """Changes every byte of the part, in one bit or in several."""
    changed = bytes(byte ^ rng.randrange(1, 256) for byte in data[start:end])
    return data[:start] + changed + data[end:]


def flip_one_bit(data: bytes, start: int, end: int, rng: Random) -> bytes:
    return data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]


def truncate(data: bytes, start: int, end: int, rng: Random) -> bytes:
    return data[:start]


def cut_out(data: bytes, start: int, end: int, rng: Random) -> bytes:
    """What follows moves to the front."""
    return data[:start] + data[end:]


def zero(data: bytes, start: int, end: int, rng: Random) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


def duplicate(data: bytes, start: int, end: int, rng: Random) -> bytes:
    """Inserts a copy of the part: behind it, or anywhere; what follows moves to the back."""
    at = rng.choice((end, rng.randrange(len(data) + 1)))
    return data[:at] + data[start:end] + data[at:]


def copy_over(data: bytes, start: int, end: int, rng: Random) -> bytes:
    """Writes a copy of the part over another place, as a misdirected write does."""
    at = rng.randrange(len(data))
    copy = data[start:end][: len(data) - at]
    return data[:at] + copy + data[at + len(copy) :]


DAMAGES: Final[dict[str, Damage]] = {
    "flip": flip,
    "flip_one_bit": flip_one_bit,
    "truncate": truncate,
    "cut_out": cut_out,
    "zero": zero,
    "duplicate": duplicate,
    "copy_over": copy_over,
}


def part_of(size: int, rng: Random) -> tuple[int, int]:
    """A part of a file that is not empty: short or long, and not seldom at its start."""
    length = min(size, rng.choice((1, 2, 4, 8, 64, 512, 4096, 20_000)))
    start = rng.randrange(size - length + 1)
    if rng.random() < 0.15:
        start = rng.randrange(min(64, size - length + 1))
    return start, start + length
