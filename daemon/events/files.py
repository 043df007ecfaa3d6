"""Files of events: rolled by size and by time, renamed when complete, bounded in total.

Owns the files of this host in the directory: `HOST-TIME-NUMBER.ndjson.gz` or `.parquet`, and the
`.part` that is being written (daemon/handlers/file/landing.py). A finished file is synced and never
changed again. Whenever one is finished, and at the start, the oldest are deleted until there is
room for another below `max_bytes`. The files of other hosts in a shared directory are left alone.

All calls block, and run in the event log's thread. A file that a crash left is finished before the
first new one is begun: lines as far as they were written, Parquet not at all, since a file without
its footer cannot be read.
"""

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from actors.config.handlers import FileHandler
from actors.config.observers import EventSettings
from actors.observers.events import Event
from daemon.handlers.file.landing import Landing, Part

SUFFIXES: Final = (".ndjson.gz", ".parquet")


class Body(Protocol):
    """What is in one file."""

    def add(self, events: Sequence[Event]) -> None: ...

    def end(self) -> None:
        """Nothing more comes."""

    def let_go(self) -> None:
        """Instead of `end`: discards the contents. Never raises."""


class Format(Protocol):
    @property
    def suffix(self) -> str: ...

    def begin(self, fd: int) -> Body: ...

    def salvage(self, fd: int) -> int:
        """Completes a file that a crash left; returns its size, 0 if nothing can be read."""


class EventFiles:
    def __init__(
        self, directory: Path, host: str, format_: Format, settings: EventSettings
    ) -> None:
        self._format = format_
        self._settings = settings
        # The name of a queue plays no part in it.
        path = directory / f"{host}-{{time}}{format_.suffix}"
        self._landing = Landing("", FileHandler(path=path, fsync=True))
        endings = "|".join(map(re.escape, SUFFIXES))
        self._mine = re.compile(rf"{re.escape(host)}-\d{{8}}T\d{{6}}Z-\d{{4}}({endings})")
        self._part: Part | None = None
        self._body: Body | None = None
        self._old_s = math.inf
        self._has_started = False

    def write(self, events: Sequence[Event], now_s: float) -> None:
        if not self._has_started:
            self._salvage()
            self._make_room()
            self._has_started = True
        if now_s >= self._old_s:
            self._finish()
        if not events:
            return
        try:
            part, body = self._open(now_s)
            body.add(events)
            part.size = os.fstat(part.fd).st_size
        except OSError:
            self._give_up()
            raise
        if part.size >= self._settings.roll_bytes:
            self._finish()

    def close(self, now_s: float) -> None:
        self._finish()

    def _open(self, now_s: float) -> tuple[Part, Body]:
        if self._part is None or self._body is None:
            self._part = self._landing.begin()
            self._body = self._format.begin(self._part.fd)
            self._old_s = now_s + self._settings.roll_interval
        return self._part, self._body

    def _finish(self) -> None:
        part, body = self._part, self._body
        if part is None or body is None:
            return
        try:
            body.end()
            part.size = os.fstat(part.fd).st_size
        except OSError:
            self._give_up()
            raise
        self._part = self._body = None
        self._old_s = math.inf
        self._landing.finish(part)
        self._make_room()

    def _give_up(self) -> None:
        """What the disk has taken is made whole, as after a crash, when it takes anything again."""
        part, body = self._part, self._body
        self._part = self._body = None
        self._old_s = math.inf
        self._has_started = False
        if body is not None:
            body.let_go()
        if part is not None:
            os.close(part.fd)

    def _salvage(self) -> None:
        for part in self._landing.left_over():
            part.size = self._format.salvage(part.fd)
            self._landing.finish(part)

    def _make_room(self) -> None:
        """Deletes the oldest files until another one fits below the bound."""
        with suppress(FileNotFoundError):
            found = [p for p in self._landing.directory.iterdir() if self._mine.fullmatch(p.name)]
            # The name has the time, and files of one second are numbered.
            newest_first = sorted(found, key=lambda path: path.name, reverse=True)
            left = self._settings.max_bytes - self._settings.roll_bytes
            for path in newest_first:
                left -= path.stat().st_size
                if left < 0:
                    path.unlink()
