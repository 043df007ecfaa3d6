"""What came out of a daemon, read where it came out: in a file, or from who told of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.crash.found import Found


@dataclass(slots=True)
class Came:
    """What came since the last look, by item."""

    good: dict[str, bytes] = field(default_factory=dict)
    """The payloads of what was delivered."""
    tried: set[str] = field(default_factory=set)
    """These and what was tried and failed."""


class Destination(Protocol):
    def look(self, before: Found) -> Came:
        """What the daemon has done that began with `before`; called when it has ended."""


class Lines:
    """A file of JSON lines, read as it grows. A line that a kill has cut short is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._rest = b""
        self._cut: set[bytes] = set()

    def new(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from (json.loads(line) for line in lines if line not in self._cut)
        if self._rest:
            self._cut.add(self._rest)


class FileDestination:
    """What a file handler has written."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    def look(self, before: Found) -> Came:
        came = Came()
        for item in self._lines.new():
            assert item["id"] not in came.good, f"{item['id']} was delivered twice by one daemon"
            came.good[item["id"]] = item["payload"].encode()
        came.tried.update(came.good)
        return came


class FlakyDestination:
    """What the function of flaky.py has told: every attempt, and each of them once."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    def look(self, before: Found) -> Came:
        came = Came()
        next_attempt = {item: there.attempt for item, there in before.live.items()}
        for told in self._lines.new():
            item, attempt = told["id"], told["attempt"]
            assert item not in came.good, f"{item} was delivered twice by one daemon"
            expected = next_attempt.get(item, 0)
            assert attempt == expected, f"{item}: attempt {attempt} comes as number {expected}"
            next_attempt[item] = attempt + 1
            came.tried.add(item)
            if told["good"]:
                came.good[item] = told["payload"].encode()
        return came
