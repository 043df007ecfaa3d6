"""The body of a templated request: its items with something around them, or made of a single item.

`frames` gives what is around the items; items with different frames need different requests.
`write` puts items into a frame. Pure.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from actors.config.rendering import BadTemplate, Rows, as_text, decode, encode
from actors.config.templates import (
    EXPRESSION,
    ITEM_NAMES,
    Field,
    JsonLeaf,
    Maker,
    PlainText,
    Shape,
    Text,
    compile_maker,
    plain_pieces,
)

BODY_NAMES: Final = frozenset(["items", "count", "queue"])
"""The names in a body that is more than its items with something around them."""

_JOINED = re.compile(
    r"""\s* items \s* (?: \| \s* join (?: \( \s*
        (?: '((?:[^'\\]|\\[nrt])*)' | "((?:[^"\\]|\\[nrt])*)" )? \s* \) )? \s* )?""",
    re.VERBOSE,
)
_ESCAPES: Final = {"\\n": "\n", "\\r": "\r", "\\t": "\t"}

Frame = tuple[bytes, bytes]
"""The body of a request before and after its items."""


class Body(Protocol):
    names: frozenset[str]
    """Items that differ in these may need different requests."""
    takes_items: bool
    """False: a request has one item."""

    def frames(self, rows: Rows) -> list[Frame]:
        """Items with different frames go in different requests. Raises Unrenderable."""

    def write(self, frame: Frame, items: Sequence[bytes]) -> bytes:
        """Raises Unrenderable."""


class ListBody:
    takes_items = True

    def __init__(self, before: Maker, after: Maker, items: "_ItemList") -> None:
        self.names = before.names | after.names
        self._before = before
        self._after = after
        self._items = items

    def frames(self, rows: Rows) -> list[Frame]:
        return list(zip(self._before.encoded(rows), self._after.encoded(rows), strict=True))

    def write(self, frame: Frame, items: Sequence[bytes]) -> bytes:
        before, after = frame
        return before + self._items.write(items) + after


class ItemBody:
    takes_items = False

    def __init__(self, maker: Maker) -> None:
        self.names = maker.names
        self._maker = maker

    def frames(self, rows: Rows) -> list[Frame]:
        return [(text, b"") for text in self._maker.encoded(rows)]

    def write(self, frame: Frame, items: Sequence[bytes]) -> bytes:
        return frame[0]


class FreeBody:
    """A body that computes with its items, such as a loop over them."""

    takes_items = True

    def __init__(self, maker: Maker, *, items_are_texts: bool) -> None:
        self.names: frozenset[str] = frozenset()
        self._maker = maker
        self._read = bytes.decode if items_are_texts else decode

    def frames(self, rows: Rows) -> list[Frame]:
        return [(queue.encode(), b"") for queue in rows.column("queue")]

    def write(self, frame: Frame, items: Sequence[bytes]) -> bytes:
        values = [self._read(item) for item in items]
        columns: dict[str, list[Any]] = {
            "items": [values],
            "count": [len(items)],
            "queue": [frame[0].decode()],
        }
        return self._maker.encoded(Rows([b""], columns))[0]


class _ItemList:
    """How items are written one after the other."""

    def __init__(self, separator: bytes | None, *, items_are_texts: bool, is_json: bool) -> None:
        """`separator` None: as a list if the items or the body are JSON."""
        self._quotes = items_are_texts and is_json
        is_list = separator is None and (is_json or not items_are_texts)
        self._separator = b"," if is_list else separator or b""
        self._form = b"[%b]" if is_list else b"%b"

    def write(self, items: Sequence[bytes]) -> bytes:
        if self._quotes:
            items = [encode(item.decode()) for item in items]
        return self._form % self._separator.join(items)


def compile_body(where: str, source: Any, *, items_are_texts: bool) -> Body:
    """The body of a request; None: its items alone."""
    names = ITEM_NAMES | BODY_NAMES
    if source is None:
        empty = Shape([])
        return ListBody(
            empty, empty, _ItemList(None, items_are_texts=items_are_texts, is_json=False)
        )
    if isinstance(source, str):
        found = _text_around_items(where, source, items_are_texts=items_are_texts)
        if found is not None:
            return found
    maker = compile_maker(where, source, names)
    if not maker.names & {"items", "count"}:
        return ItemBody(maker)
    if isinstance(maker, Shape):
        parts = maker.parts
        places = [at for at, part in enumerate(parts) if _is_items(part)]
        if len(places) == 1:
            before, after = Shape(parts[: places[0]]), Shape(parts[places[0] + 1 :])
            if not (before.names | after.names) & {"items", "count"}:
                items = _ItemList(None, items_are_texts=items_are_texts, is_json=True)
                return ListBody(before, after, items)
    if extra := maker.names - BODY_NAMES:
        raise BadTemplate(
            f"{where}: uses items together with {', '.join(sorted(extra))} in a way that needs all "
            "items at once: write items as one value, or move the rest to query or headers"
        )
    return FreeBody(maker, items_are_texts=items_are_texts)


def _text_around_items(where: str, source: str, *, items_are_texts: bool) -> ListBody | None:
    """A text with its items in one place and plain fields around them; None: it is different."""
    pieces = EXPRESSION.split(source)
    places = [at for at in range(1, len(pieces), 2) if _JOINED.fullmatch(pieces[at])]
    if len(places) != 1 or "{%" in source or "{#" in source:
        return None
    found = _JOINED.fullmatch(pieces[places[0]])
    assert found is not None
    texts = []
    for part in (pieces[: places[0]], pieces[places[0] + 1 :]):
        text = "".join(f"{{{{{piece}}}}}" if at % 2 else piece for at, piece in enumerate(part))
        inner = plain_pieces(where, text, ITEM_NAMES)
        if inner is None:
            return None
        texts.append(Text(where, PlainText(inner, as_text)))
    separator = None
    if "|" in found[0]:
        escaped = found[1] or found[2] or ""
        separator = re.sub(r"\\.", lambda mark: _ESCAPES[mark[0]], escaped).encode()
    items = _ItemList(separator, items_are_texts=items_are_texts, is_json=False)
    return ListBody(texts[0], texts[1], items)


def _is_items(part: "bytes | Maker") -> bool:
    return isinstance(part, JsonLeaf) and isinstance(part.value, Field) and part.value.is_items
