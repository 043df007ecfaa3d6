"""A statement of the cold store, written once for PostgreSQL and SQLite.

The text is PostgreSQL's, in the part of the language that both databases have. What SQLite says in
other words is translated when the module is imported:

    $1                          ?1
    = ANY ($1), <> ALL ($1)     IN (...), NOT IN (...) with as many marks as the list has values
    $1::bytea                   the cast is left out
    = TRUE, = FALSE             = 1, = 0: SQLite's indexes are declared so
    least(), greatest()         min(), max()
    strpos()                    instr()
    FOR UPDATE, FOR SHARE, ...  left out: one thread writes
    INDEXED BY name             SQLite's alone; PostgreSQL's planner is held by its settings

and words of this module's own:

    :now        the wall clock in ms: the server's, or this host's for SQLite
    :lease_now  the clock of leases in ms; the same as `:now` in PostgreSQL
    :has_keys   whether a row of `runs`, or one that shares its body, may have unique keys
    :raw(x)     a text as it is stored: in SQLite as bytes, because damaged text fails in the driver
    :unlocked   the assignments of a row that is leased no more
    :numbered($1)   a table of `n` and `place`, from 0 on: the numbers in a list, in their order

Where the two say something in ways that have nothing in common, `sqlite=` gives SQLite's own text,
with the same parameters.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

_SERVERS_NOW: Final = (
    "coalesce(${}::bigint, (extract(epoch FROM statement_timestamp()) * 1000)::bigint)"
)
"""The server's clock, unless the parameter says otherwise."""
_CLOCKS: Final = (":now", ":lease_now")

_NUMBERED: Final = re.compile(r":numbered\(\$(\d+)\)")

_FOR_SQLITE: Final = (
    (re.compile(":has_keys"), "EXISTS (SELECT 1 FROM homes WHERE homes.body_id = runs.body_id)"),
    (re.compile(r"::\w+(\[\])?"), ""),
    (re.compile(r"\bFOR (UPDATE|SHARE|KEY SHARE)\b( SKIP LOCKED)?"), ""),
    (re.compile(r"= TRUE\b"), "= 1"),
    (re.compile(r"= FALSE\b"), "= 0"),
    (re.compile(r"\bleast\("), "min("),
    (re.compile(r"\bgreatest\("), "max("),
    (re.compile(r"\bstrpos\("), "instr("),
    (re.compile(r":raw\(([\w.]+)\)"), r"CAST(\1 AS BLOB)"),
    (re.compile(":unlocked"), "lock_uuid = NULL"),
    (_NUMBERED, r"(SELECT value AS n, key AS place FROM json_each($\1))"),
)
_FOR_POSTGRES: Final = (
    (
        re.compile(":has_keys"),
        "EXISTS (SELECT 1 FROM keys WHERE keys.body_id = runs.body_id AND keys.until IS NULL)",
    ),
    (re.compile(r"\bINDEXED BY \w+"), ""),
    (re.compile(r":raw\(([\w.]+)\)"), r"\1"),
    (re.compile(":unlocked"), "lock_uuid = NULL, holder = NULL"),
    (
        _NUMBERED,
        r"(SELECT n, place - 1 AS place FROM unnest($\1::bigint[])"
        " WITH ORDINALITY AS given (n, place))",
    ),
)
_LIST: Final = re.compile(r"(= ANY|<> ALL) \(\$(\d+)\)")
_MARK: Final = re.compile(r"\?(\d+)")
_WORDS: Final = {"= ANY": "IN", "<> ALL": "NOT IN"}
_TEXTS_MAX: Final = 64
"""How many texts of one statement are kept: one for each length of its lists, rounded up."""


class Now(NamedTuple):
    """One moment on both clocks of this host."""

    wall: int
    lease: int


class _List(NamedTuple):
    word: str
    parameter: int


class Statement:
    def __init__(self, text: str, *, sqlite: str | None = None) -> None:
        self._parameters = max(map(int, re.findall(r"\$(\d+)", text)), default=0)
        self.has_clock: Final = any(clock in text for clock in _CLOCKS)
        """Whether PostgreSQL takes one more parameter: the time, or None for the server's."""
        self.postgres: Final = self._for_postgres(text)
        self._clocks: list[str] = []
        """Which of the clocks SQLite's text reads: their times are its last fixed parameters."""
        own = text if sqlite is None else sqlite
        self._arrays = sorted({int(number) for number in _NUMBERED.findall(own)})
        """Parameters that are lists, and go to SQLite as JSON."""
        self._pieces = self._for_sqlite(own)
        self._fixed = max(
            (int(n) for piece in self._pieces if type(piece) is str for n in _MARK.findall(piece)),
            default=0,
        )
        """The last of SQLite's marks that are no list's."""
        self._texts: dict[tuple[int, ...], str] = {}

    def __repr__(self) -> str:
        return f"Statement({self.postgres!r})"

    def sqlite(self, values: Sequence[Any], now: Now) -> tuple[str, Sequence[Any]]:
        """SQLite's text, and what is bound to its marks."""
        bound = self.bound(values, now)
        if len(self._pieces) == 1:
            return self._text(()), bound
        lists = [padded(values[one.parameter - 1]) for one in self._pieces if type(one) is _List]
        for one in self._pieces:
            if type(one) is _List:
                bound[one.parameter - 1] = None
        for given in lists:
            bound += given
        if not any(lists):
            # The parameter of an empty list has no mark, and SQLite counts up to the last mark.
            del bound[self._fixed :]
        return self._text(tuple(map(len, lists))), bound

    def bound(self, values: Sequence[Any], now: Now) -> list[Any]:
        """What is bound to the fixed marks of SQLite's text."""
        times = [now.wall if clock == ":now" else now.lease for clock in self._clocks]
        bound = [*values, *times]
        for parameter in self._arrays:
            bound[parameter - 1] = json.dumps(bound[parameter - 1])
        return bound

    @property
    def for_each(self) -> str:
        """SQLite's text of a statement without lists."""
        return self._text(())

    def _text(self, lengths: tuple[int, ...]) -> str:
        text = self._texts.get(lengths)
        if text is None:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            text = self._texts[lengths] = self._composed(lengths)
        return text

    def _composed(self, lengths: tuple[int, ...]) -> str:
        at = self._parameters + len(self._clocks) + 1
        parts, left = [], iter(lengths)
        for piece in self._pieces:
            if isinstance(piece, str):
                parts.append(piece)
                continue
            count = next(left)
            marks = ", ".join(f"?{number}" for number in range(at, at + count))
            parts.append(f"{piece.word} ({marks})")
            at += count
        return "".join(parts)

    def _for_postgres(self, text: str) -> str:
        for pattern, said in _FOR_POSTGRES:
            text = pattern.sub(said, text)
        now = _SERVERS_NOW.format(self._parameters + 1)
        return text.replace(":lease_now", now).replace(":now", now)

    def _for_sqlite(self, text: str) -> list[str | _List]:
        for pattern, said in _FOR_SQLITE:
            text = pattern.sub(said, text)
        for clock in _CLOCKS:
            if clock in text:
                self._clocks.append(clock)
                text = text.replace(clock, f"?{self._parameters + len(self._clocks)}")
        pieces: list[str | _List] = []
        at = 0
        for found in _LIST.finditer(text):
            pieces.append(_marked(text[at : found.start()]))
            pieces.append(_List(_WORDS[found[1]], int(found[2])))
            at = found.end()
        return [*pieces, _marked(text[at:])]


def padded(values: Sequence[T]) -> list[T]:
    """As many as the next power of two, so that there are few statements to prepare."""
    if not values:
        return []
    return [*values, *[values[-1]] * ((1 << (len(values) - 1).bit_length()) - len(values))]


def _marked(text: str) -> str:
    return re.sub(r"\$(\d+)", r"?\1", text)
