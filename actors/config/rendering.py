"""The input of templates: the items of a slice, as columns; and how values become texts.

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

STEPS_MAX: Final = 100_000
OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
OMIT: Final = object()
"""The value of a member that is left out of its object."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class BadTemplate(ValueError):
    """A template that cannot be compiled; the text says where and why."""


class Unrenderable(Exception):
    """An item that a template does not fit; the text says where and why."""


class Rows:
    """The items of a slice: a value per item under each name."""

    def __init__(self, payloads: Sequence[bytes], columns: Mapping[str, Sequence[Any]]) -> None:
        """`columns` has all names but those of the payload."""
        self._payloads = payloads
        self._columns = dict(columns)

    def __len__(self) -> int:
        return len(self._payloads)

    def one(self, at: int) -> "Rows":
        columns = {name: column[at : at + 1] for name, column in self._columns.items()}
        return Rows(self._payloads[at : at + 1], columns)

    def column(self, name: str) -> Sequence[Any]:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._read(name)
        return column

    def json_payloads(self) -> list[bytes]:
        """The payloads as they came, each on one line. Raises Unrenderable if one is not JSON."""
        decoded = self.column("payload")
        return [
            encode(value) if b"\n" in payload or b"\r" in payload else payload
            for payload, value in zip(self._payloads, decoded, strict=True)
        ]

    def contexts(self, names: Iterable[str]) -> list[dict[str, Any]]:
        names = sorted(names)
        if not names:
            return [{} for _ in self._payloads]
        columns = [self.column(name) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _read(self, name: str) -> list[Any]:
        try:
            if name == "payload":
                return list(map(decode, self._payloads))
            return [payload.decode() for payload in self._payloads]
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
            kind = "JSON" if name == "payload" else "UTF-8"
            raise Unrenderable(f"the payload is not {kind}: {problem}") from None


def as_text(value: Any) -> str:
    """A value inside a text: as in JSON, but texts without quotes, and nothing for null."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    if isinstance(value, str):
        return str(value)
    return encode(value).decode()


def as_url_part(value: Any) -> str:
    """A value inside an address. Without it, the address would be another one."""
    text = as_text(value)
    if text in ("", ".", ".."):
        raise Unrenderable(f"an address cannot contain {text!r} as a value")
    return quote(text, safe="")


class Steps:
    """Counts the steps of all loops of one rendering."""

    left = STEPS_MAX

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Unrenderable(f"its loops have more than {STEPS_MAX} steps")
