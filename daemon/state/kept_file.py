"""Files of the state directory that keep what was defined at run time.

    queues.json       queues that were created at run time, and pauses
    schedules.json    schedules, and the ticks installed for them
    triggers.json     QUEUE triggers, and the queues that are held for them

Such a file is replaced as a whole, and is durable when `save` returns. A save is not cancelled
halfway.

No content of such a file prevents the daemon from starting. A file that is not a document of this
version, or has a section of the wrong type, is renamed to `NAME.damaged-…`, and the daemon starts
without it. If some entries cannot be read, or a section is unknown, the others are used, and the
original file is kept as `NAME.rejected-…`. Both are logged; the operator must define the missing
entries again. Ticks and jobs of missing schedules and triggers still come due and end normally.
"""

import errno
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from zlib import crc32

import structlog
import trio
from pydantic import TypeAdapter, ValidationError

from actors.config.book import Kept
from daemon.errors import CannotStart
from daemon.state.ballast import Ballast
from daemon.state.private_files import read_private, replace_private

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = structlog.get_logger()

T = TypeVar("T", bound="DataclassInstance")
"""A section of the document per field: an object, or a list."""

VERSION: Final = 1

QUEUES: Final = "queues.json"
SCHEDULES: Final = "schedules.json"
TRIGGERS: Final = "triggers.json"
QUEUES_BALLAST_BYTES: Final = 256 * 1024
"""Room reserved for queues.json: a full disk must drain, and a paused queue that cannot be resumed
would prevent that."""


class KeptFile(Generic[T]):
    def __init__(self, path: Path, empty: T, ballast_bytes: int = 0) -> None:
        self._path = path
        self._empty = empty
        self._ballast = Ballast(path.with_name(f"{path.name}.ballast"), ballast_bytes)

    def load(self) -> T:
        """Returns `empty` if there is no usable file."""
        path = self._path
        try:
            text = read_private(path)
            found, rejected = from_text(text, type(self._empty))
        except FileNotFoundError:
            return self._empty
        except OSError as error:
            raise CannotStart(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as problem:
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns():x}")
            path.rename(aside)
            log.error("state.file_damaged", file=str(path), kept=str(aside), error=str(problem))
            return self._empty
        if rejected:
            aside = path.with_name(f"{path.name}.rejected-{crc32(text.encode()):08x}")
            _keep_as(aside, path)
            log.error("state.entries_rejected", file=str(path), kept=str(aside), entries=rejected)
        return found

    def open(self) -> Kept[T]:
        """Loads the file, and reserves its room."""
        found = self.load()
        self._ballast.keep()
        return Kept(found, self.save)

    async def save(self, value: T) -> None:
        text = to_text(value)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._replace, text)

    def _replace(self, text: str) -> None:
        try:
            replace_private(self._path, text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._ballast.give_up():
                raise
            replace_private(self._path, text)
        self._ballast.keep()


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


def to_text(document: Any) -> str:
    return json.dumps({"version": VERSION, **_plain(document)}, default=_plain, indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value, key=repr)
    return {field.name: getattr(value, field.name) for field in fields(value)}


def from_text(text: str, kind: type[T]) -> tuple[T, list[str]]:
    """The document without the entries that cannot be read, and what is wrong with those. Raises
    ValueError if the text is not a document of this version."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or content.pop("version", None) != VERSION:
        raise ValueError(f"it is not a document of version {VERSION}")
    rejected = [
        f"{name}: unknown" for name in content.keys() - {field.name for field in fields(kind)}
    ]
    while True:
        try:
            return TypeAdapter(kind).validate_python(content), rejected
        except ValidationError as problem:
            texts = {error["loc"][:2]: error["msg"] for error in problem.errors()}
        # From the end: an element that is removed from a list renumbers those behind it.
        for section, *entry in sorted(texts, reverse=True):
            text = f"{'.'.join(map(str, [section, *entry]))}: {texts[section, *entry]}"
            if not entry:
                raise ValueError(text)
            del content[section][entry[0]]
            rejected.append(text)
