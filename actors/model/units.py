"""Sizes and durations as people write them: `512Mi`, `10MB`, `250ms`, `1h30m`.

A plain number is bytes or seconds. `Ki`, `Mi`, … are powers of 1024 and `K`, `M`, … powers of 1000,
each with or without a `B`, as in Kubernetes. The formatters are exact: their output parses to the
same number, so that `forebay config show` can be fed back.

Clients send these texts too, so the length of a text is checked before parsing and its value
afterwards: parsing 100,000 digits takes seconds, and Decimal refuses a million.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

_SIZE_UNITS: Final = {
    prefix.lower() + infix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for infix, base in (("i", 1024), ("", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]i?)?b?)", re.IGNORECASE)

_DURATION_UNITS: Final = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "us": Decimal("0.000001"),
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|us|d|h|m|s)\s*")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

TEXT_MAX: Final = 400
"""Characters; the smallest float takes 327."""
SHOWN_MAX: Final = 60
SIZE_MAX: Final = 2**63
DURATION_S_MAX: Final = 1e12
"""30,000 years. Every setting has its own, lower limit."""


def parse_size(value: object) -> int:
    """Bytes; raises ValueError for anything that is not a size."""
    text = written(value)
    match = _SIZE.fullmatch(text) if len(text) <= TEXT_MAX else None
    if not match:
        raise ValueError(f"{shown(text)} is not a size: write bytes or a unit, as 512Mi or 10MB")
    number, unit = match.groups()
    size = Decimal(number) * (_SIZE_UNITS[unit.lower()] if unit else 1)
    if size > SIZE_MAX:
        raise ValueError(f"{shown(text)} is too large: a size is at most {format_size(SIZE_MAX)}")
    if size != int(size):
        raise ValueError(f"{shown(text)} is not a whole number of bytes")
    return int(size)


def format_size(size: int) -> str:
    """The shortest exact form: 67108864 is `64Mi`, 10000000 is `10MB`, 1025 is `1025`."""
    for prefix in "TGMK":
        for suffix, unit in (("i", "i"), ("B", "")):
            factor = _SIZE_UNITS[prefix.lower() + unit]
            if size and size % factor == 0:
                return f"{size // factor}{prefix}{suffix}"
    return str(size)


def parse_duration(value: object) -> float:
    """Seconds; raises ValueError for anything that is not a duration."""
    text = written(value)
    is_number = len(text) <= TEXT_MAX and _NUMBER.fullmatch(text)
    if not is_number and (len(text) > TEXT_MAX or not _DURATION.fullmatch(text)):
        raise ValueError(
            f"{shown(text)} is not a duration: write seconds or a unit, as 30s or 250ms"
        )
    parts = [(text, "s")] if is_number else _DURATION_PART.findall(text)
    seconds = float(sum(Decimal(number) * _DURATION_UNITS[unit] for number, unit in parts))
    if seconds > DURATION_S_MAX:
        most = format_duration(DURATION_S_MAX)
        raise ValueError(f"{shown(text)} is too long: a duration is at most {most}")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest exact form: 300 is `5m`, 0.25 is `250ms`, 0 is `0s`."""
    exact = Decimal(repr(seconds))
    for unit, factor in _DURATION_UNITS.items():
        if exact and exact % factor == 0:
            return f"{(exact / factor).normalize():f}{unit}"
    return f"{exact.normalize():f}s"


def shown(value: object) -> str:
    """A value for a message, shortened if it is long: it may be megabytes."""
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…")


def written(value: object) -> str:
    """The text of the file; a number that YAML has already parsed is written out again."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Infinity and NaN stay words, which no pattern accepts.
        return f"{Decimal(repr(value)):f}".removesuffix(".0")
    return type(value).__name__ if isinstance(value, list | dict | tuple) else repr(value)


@dataclass(frozen=True, slots=True)
class Within:
    """A setting's range, inclusive, shown as it is written in the configuration."""

    low: float
    high: float
    show: Callable[[Any], str]

    def __call__(self, value: float) -> float:
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.show(value)[:SHOWN_MAX]} is outside {self}")
        return value

    def __str__(self) -> str:
        return f"{self.show(self.low)}..{self.show(self.high)}"


def sizes(low: str, high: str) -> AfterValidator:
    return AfterValidator(Within(parse_size(low), parse_size(high), format_size))


def durations(low: str, high: str) -> AfterValidator:
    return AfterValidator(Within(parse_duration(low), parse_duration(high), format_duration))


def numbers(low: float, high: float) -> AfterValidator:
    return AfterValidator(Within(low, high, str))


Size = Annotated[
    int, BeforeValidator(parse_size), PlainSerializer(format_size, str, when_used="json")
]
"""A number of bytes."""

Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration, str, when_used="json")
]
"""A number of seconds."""
