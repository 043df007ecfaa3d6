"""Classifies an error text into one of a few kinds, because a metric label must not be free text.

When a failure is settled only its text is left, whether a worker or a consumer reported it.
Handlers use consistent wording, and docs/metrics.md lists the kinds. Pure.
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
    """The kind of an error's text; `other` if no known words match."""
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
