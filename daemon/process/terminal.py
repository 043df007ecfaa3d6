"""Protects the operator's terminal from control characters in data.

A flow, an error text or a payload may hold escape sequences that clear the screen, set its title or
type answers into the shell, and marks that reverse the direction of text. `clean` replaces each
such character by a visible one. It is applied where text is written: `guard` puts it in front of
standard output and standard error, `open_console` (daemon/cli/client.py) in front of rich's tables,
and daemon/process/logs.py in front of the log on a terminal. JSON keeps its value: `json_text`
escapes.

Bytes written to `sys.stdout.buffer` are payloads for programs: they are cleaned on a terminal only.
"""

import json
import re
import sys
from typing import IO, Any, Final

from actors.model.secret_values import SECRET_VALUES

REPLACEMENT: Final = "\ufffd"
_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # Controls, without line feed and tabulator.
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # Direction of text, and line separators.
    "\ud800-\udfff"  # Halves of characters, which cannot be written at all.
    "\U000e0000-\U000e007f"  # Tags, which are invisible.
    "]"
)


def clean(text: str) -> str:
    return _UNSAFE.sub(REPLACEMENT, text)


def clean_tree(value: Any) -> Any:
    """The same value with all its texts cleaned."""
    if isinstance(value, dict):
        return {clean_tree(key): clean_tree(child) for key, child in value.items()}
    if isinstance(value, list):
        return [clean_tree(child) for child in value]
    return clean(value) if isinstance(value, str) else value


def json_text(value: Any, **options: Any) -> str:
    """Like `json.dumps`, but non-ASCII text stays readable; escapes what `clean` would replace."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def guard() -> None:
    """From now on this process writes clean text to standard output and standard error."""
    sys.stdout, sys.stderr = _CleanText(sys.stdout), _CleanText(sys.stderr)


def unguarded(stream: IO[str]) -> IO[str]:
    """The raw stream, for code that cleans its text and writes its own escape sequences."""
    found: IO[str] = getattr(stream, "rich_proxied_file", stream)
    return found


class _CleanText:
    """A text stream that cleans what is written, and masks secrets, which a traceback may hold;
    everything else is passed through."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.rich_proxied_file = stream
        """The raw stream, to which rich's consoles write directly."""

    def write(self, text: str) -> int:
        self._stream.write(clean(SECRET_VALUES.masked(text)))
        return len(text)

    @property
    def buffer(self) -> Any:
        raw: Any = getattr(self._stream, "buffer")  # noqa: B009
        return _CleanBytes(raw) if self._stream.isatty() else raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _CleanBytes:
    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def write(self, data: bytes) -> int:
        self._raw.write(clean(data.decode(errors="replace")).encode())
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)
