"""Dead letters grouped by error, for operators who look for the cause.

Texts that differ only in numbers, ids and quoted words are one group, except for status and exit
codes, which identify the problem; the pure function `shape_of` decides. Letters are read in order,
a bounded number per request, and a cursor says where to continue; the counts cover the letters
seen, and `is_complete` says whether that is all.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import trio

from actors.control.fields import Fields, Operation, cursor_is_known, cursor_text, read_filter
from actors.ports.tiers import DeadLetter, DeadLetters

PAGE: Final = 1000
LETTERS_MAX: Final = 20_000
GROUPS_S: Final = 1.0
GROUPS_MAX: Final = 200
"""Letters of further groups are counted in one more group."""
SHAPE_MAX: Final = 200
OTHERS: Final = "(others)"

_VARIES: Final = re.compile(
    r"""(?P<code> ^[1-5]\d\d\b(?![.\d])
        | \b(?:http(?:/[\d.]+)?|status|code|errno|exit|exited\ with)[ :=]{1,2}\d{1,3}\b(?![.\d]))
    | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-\d+)?  # ids
    | 0x[0-9a-f]+ | \b[0-9a-f]{16,}\b | \d+(\.\d+)* | '[^']{0,200}' | "[^"]{0,200}" """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


class DeadGroups:
    def __init__(self, dead: DeadLetters) -> None:
        self._dead = dead
        self.operations: Mapping[str, Operation] = {"dead.groups": self._groups_op}

    async def _groups_op(self, fields: Fields) -> dict[str, Any]:
        which, cursor = read_filter(fields), fields.bytes("cursor")
        fields.end()
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        seen, until = 0, trio.current_time() + GROUPS_S
        while seen < LETTERS_MAX and (not seen or trio.current_time() < until):
            with cursor_is_known():
                page = await self._dead.find(which, PAGE, cursor)
            for letter in page.letters:
                add_to(groups, letter)
            seen += len(page.letters)
            cursor = page.cursor
            if cursor is None:
                break
        ordered = sorted(groups.values(), key=lambda group: (-group["count"], group["error"]))
        return {
            "groups": ordered,
            "letters": seen,
            "is_complete": cursor is None,
            "cursor": cursor_text(cursor),
        }


def add_to(groups: dict[tuple[str, str], dict[str, Any]], letter: DeadLetter) -> None:
    text = letter.errors[-1].text if letter.errors else ""
    name = (letter.queue, shape_of(text))
    if name not in groups and len(groups) >= GROUPS_MAX:
        name = (letter.queue, OTHERS)
    group = groups.get(name)
    if group is None:
        group = groups[name] = {
            "queue": letter.queue,
            "error": name[1],
            "example": text,
            "example_id": letter.id,
            "count": 0,
            "first_ms": letter.died_ms,
            "last_ms": letter.died_ms,
        }
    group["count"] += 1
    group["first_ms"] = min(group["first_ms"], letter.died_ms)
    group["last_ms"] = max(group["last_ms"], letter.died_ms)


def shape_of(text: str) -> str:
    """The error without the parts that differ from item to item."""
    plain = " ".join(text.split())
    return _VARIES.sub(lambda found: found["code"] or "…", plain)[:SHAPE_MAX]
