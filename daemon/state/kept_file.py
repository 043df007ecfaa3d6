"""Files of the state directory that keep what was defined at run time.

    queues.json       queues that were created at run time, and pauses
    schedules.json    schedules, and the ticks installed for them
    triggers.json     QUEUE triggers, and the queues that are held for them

Such a file is replaced as a whole, and is durable when `save` returns. A save is not cancelled
halfway.

No content of such a file prevents the daemon from starting. A file that is not a document is
renamed to `NAME.damaged-…`, and the daemon starts without it. If some entries of a document cannot
be read, the others are used, and the original file is kept as `NAME.rejected-…`. Both are logged;
the operator must define the missing entries again. Ticks and jobs of missing schedules and triggers
still come due and end normally.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar
from zlib import crc32

import structlog
import trio

from actors.config import schedule_book, trigger_book
from actors.config.catalogue import (
    Definitions,
    definitions_from_json,
    definitions_to_json,
)
from actors.config.kept import Kept
from daemon.errors import CannotStart
from daemon.state.ballast import Ballast
from daemon.state.private_files import read_private, replace_private

log = structlog.get_logger()

T = TypeVar("T")

QUEUES: Final = "queues.json"
SCHEDULES: Final = "schedules.json"
TRIGGERS: Final = "triggers.json"
QUEUES_BALLAST_BYTES: Final = 256 * 1024
"""Room reserved for queues.json: a full disk must drain, and a paused queue that cannot be resumed
would prevent that."""


@dataclass(frozen=True, slots=True)
class KeptFile(Generic[T]):
    path: Path
    parse: Callable[[str, list[str]], T]
    """Adds unusable entries to the list. Raises ValueError if the text is not a document."""
    to_text: Callable[[T], str]
    empty: T
    ballast: Ballast

    def load(self) -> T:
        """Returns `empty` if there is no usable file."""
        path, rejected = self.path, list[str]()
        try:
            text = read_private(path)
            found = self.parse(text, rejected)
        except FileNotFoundError:
            return self.empty
        except OSError as error:
            raise CannotStart(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as problem:
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns():x}")
            path.rename(aside)
            log.error("state.file_damaged", file=str(path), kept=str(aside), error=str(problem))
            return self.empty
        if rejected:
            aside = path.with_name(f"{path.name}.rejected-{crc32(text.encode()):08x}")
            _keep_as(aside, path)
            log.error("state.entries_rejected", file=str(path), kept=str(aside), entries=rejected)
        return found

    def open(self) -> Kept[T]:
        """Loads the file, and reserves its room."""
        found = self.load()
        self.ballast.keep()
        return Kept(found, self.save)

    async def save(self, value: T) -> None:
        text = self.to_text(value)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._replace, text)

    def _replace(self, text: str) -> None:
        try:
            replace_private(self.path, text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.ballast.give_up():
                raise
            replace_private(self.path, text)
        self.ballast.keep()


def _keep_as(aside: Path, path: Path) -> None:
    """Gives the current file a second name, which needs no room. The next save replaces the file
    under its first name."""
    try:
        aside.hardlink_to(path)
    except FileExistsError:
        # An earlier start has kept the same file.
        return
    except OSError as error:
        log.error("state.not_kept", file=str(path), error=str(error))


def queues_file(directory: Path) -> KeptFile[Definitions]:
    ballast = Ballast(directory / f"{QUEUES}.ballast", QUEUES_BALLAST_BYTES)
    return KeptFile(
        directory / QUEUES, definitions_from_json, definitions_to_json, Definitions(), ballast
    )


def schedules_file(directory: Path) -> KeptFile[schedule_book.KeptSchedules]:
    return KeptFile(
        directory / SCHEDULES,
        schedule_book.kept_from_json,
        schedule_book.kept_to_json,
        schedule_book.KeptSchedules(),
        Ballast(directory / f"{SCHEDULES}.ballast", 0),
    )


def triggers_file(directory: Path) -> KeptFile[trigger_book.KeptTriggers]:
    return KeptFile(
        directory / TRIGGERS,
        trigger_book.kept_from_json,
        trigger_book.kept_to_json,
        trigger_book.KeptTriggers(),
        Ballast(directory / f"{TRIGGERS}.ballast", 0),
    )
