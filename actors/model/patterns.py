"""Regular expressions that users configure, matched in bounded time.

The event loop matches error texts of foreign systems against the patterns of operators. Python's
`re` backtracks: `(a+)+$` on 28 letters took 37 s, and twice as long with each further letter. RE2
takes time in proportion to pattern × text in all cases. Both are bounded here, so that one
search takes 16 ms at worst, and usually 3 to 9 µs (`re`: 0.3 to 70 µs). RE2 also releases the GIL
while it searches, so that many searches can be done in a thread (actors/workers/retry.py).

Tried and rejected: the Rust engine inside pydantic. It is ten times faster on usual patterns, but
the size of a compiled pattern is bounded by 10 MiB only, and 46 ms were spent on 500 characters
with the GIL held.

It does not support look-around, backreferences, atomic groups and possessive quantifiers. They are
refused when the configuration is read. `\\d`, `\\w`, `\\s` and `\\b` match ASCII only; `\\p{L}` and
similar classes match Unicode. `$` is the end of the text, also before a final line break.
"""

from functools import lru_cache
from typing import Any, Final

import re2

PATTERN_CHARS_MAX: Final = 1000
PROGRAM_SIZE_MAX: Final = 1000
"""Instructions of a compiled pattern: `timed? ?out` has 15, `.{0,100}` about 900."""
SEARCHED_CHARS_MAX: Final = 1000
"""Only the beginning of a text is searched; a consumer's error has at most as many bytes."""

_UNSUPPORTED: Final = {
    "(?=": "look-ahead is not supported",
    "(?!": "look-ahead is not supported",
    "(?<": "look-behind is not supported",
    "(?>": "atomic groups are not supported",
    "(?(": "conditions are not supported",
    "(?P": "backreferences are not supported",
    "(?#": "comments are not supported",
    "\\Z": "\\Z is not supported: use \\z",
    "++": "possessive quantifiers are not supported",
    "*+": "possessive quantifiers are not supported",
    "?+": "possessive quantifiers are not supported",
}


def check_pattern(pattern: str) -> None:
    """Raises ValueError if `pattern` is not a regular expression that can be matched here."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(
            f"a regular expression has at most {PATTERN_CHARS_MAX} characters, not {len(pattern)}"
        )
    try:
        size = _compiled(pattern).programsize
    except re2.error as problem:
        raise ValueError(
            f"{pattern!r} is not a valid regular expression: {_why(problem)}"
        ) from None
    except UnicodeEncodeError:
        raise ValueError(
            f"{pattern!r} is not a valid regular expression: it is not UTF-8"
        ) from None
    if size > PROGRAM_SIZE_MAX:
        raise ValueError(
            f"{pattern!r} is too large a regular expression ({size} instructions, at most "
            f"{PROGRAM_SIZE_MAX}): use smaller numbers in braces, or * and +"
        )


def finds(pattern: str, text: str) -> bool:
    """Whether `pattern`, which was checked, matches anywhere in the beginning of `text`."""
    searched = text[:SEARCHED_CHARS_MAX].encode(errors="replace")
    return _compiled(pattern).search(searched) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = 1024 * 1024
    return re2.compile(pattern, options)


def _why(problem: Exception) -> str:
    said = problem.args[0]
    reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    what, _, where = reason.partition(": ")
    if what == "invalid escape sequence" and where[1:].isdigit():
        return f"backreferences are not supported ({where})"
    for operator, text in _UNSUPPORTED.items():
        if where.startswith(operator):
            return f"{text} ({where})"
    return reason
