"""Reads a program's results for single items: lines of JSON on its standard output.

    {"id": "0198c…-17", "status": "failed", "error": "no such customer"}

`status` is `ok`, `retry` (after `retry_after` seconds, if given) or `failed` (for good);
`failure_reason`, if given, is `application` or `business`. Other lines, and lines about items that
were not in the batch, are ignored.
Bounded: only the verdicts are kept, and of a line no more than 64 KiB.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from actors.model.outcomes import Failure
from daemon.handlers.items import Verdict
from forebay.item import read_failure_reason
from forebay.strict_json import loads

LINE_BYTES_MAX: Final = 64 * 1024
AFTER_S_MAX: Final = 86400.0


class ItemResults:
    """Parses a program's output as it arrives; `verdicts` are by item id."""

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = frozenset(ids)
        self._line = bytearray()
        self._is_too_long = False
        self.verdicts: dict[str, Verdict] = {}

    def feed(self, data: bytes | bytearray) -> None:
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._extend(part)
            self._end_line()
        self._extend(rest)

    def end(self) -> None:
        """The output is complete; its last line may lack a line feed."""
        self._end_line()

    def _extend(self, part: bytes | bytearray) -> None:
        if self._is_too_long or len(self._line) + len(part) > LINE_BYTES_MAX:
            self._is_too_long = True
            self._line.clear()
        else:
            self._line += part

    def _end_line(self) -> None:
        if self._line:
            self._take(bytes(self._line))
        self._line.clear()
        self._is_too_long = False

    def _take(self, line: bytes) -> None:
        try:
            said = loads(line)
        except ValueError:
            return
        if not isinstance(said, dict) or not isinstance(item_id := said.get("id"), str):
            return
        if item_id not in self._ids:
            return
        text = str(said.get("error") or "the program gave no reason")
        reason = read_failure_reason(said.get("failure_reason")) or "application"
        failure = Failure(text, blames_destination=False, failure_reason=reason)
        match said.get("status"):
            case "ok":
                self.verdicts[item_id] = None
            case "retry":
                pause = seconds(said.get("retry_after"))
                self.verdicts[item_id] = replace(failure, retry_after_s=pause)
            case "failed":
                self.verdicts[item_id] = replace(failure, is_permanent=True)


def seconds(said: object) -> float | None:
    """The pause that a program asks for, at most a day; None if it is not a valid time."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not said >= 0:
        return None
    return float(min(said, AFTER_S_MAX))
