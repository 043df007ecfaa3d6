"""What kind of error an item has failed with, as one of a few words: a label may not be a text.

The text is all that is left of a failure when it is settled, whoever has delivered, worker or
consumer; handlers word what they say alike, and docs/metrics.md lists the words. Pure.
"""

import re
from functools import lru_cache
from typing import Final, Literal, get_args

ErrorType = Literal[
    "client_error", "connection", "exception", "exit", "rate_limited", "redirect",
    "server_error", "timeout", "unpacking", "other",
]  # fmt: skip
ERROR_TYPES: Final[tuple[ErrorType, ...]] = get_args(ErrorType)

_STATUS: Final = re.compile(r"([1-5]\d\d) from ")
_WORDS: Final[tuple[tuple[re.Pattern[str], ErrorType], ...]] = (
    (re.compile(r"took longer than|not (done|written) after|timed? ?out", re.I), "timeout"),
    (re.compile(r"exit(ed)?\b|ended with|died over it|signal", re.I), "exit"),
    (re.compile(r"connect|closed|reset|resolve|refused|unreachable|TLS|certificate", re.I),
     "connection"),
    (re.compile(r"cannot be unpacked", re.I), "unpacking"),
    (re.compile(r"^[\w.]+(Error|Exception)\b"), "exception"),
)  # fmt: skip


@lru_cache(maxsize=1024)
def error_type(text: str) -> ErrorType:
    """Of an error's text; what is in no known words is `other`."""
    found = _STATUS.match(text)
    if found is not None:
        return _of_status(int(found[1]))
    return next((kind for words, kind in _WORDS if words.search(text)), "other")


def _of_status(status: int) -> ErrorType:
    if status == 429:
        return "rate_limited"
    if status in (408, 504):
        return "timeout"
    if status >= 500:
        return "server_error"
    return "redirect" if status < 400 else "client_error"
