"""Files of the state directory that are replaced as a whole: what was defined at run time.

Nothing in such a file keeps the daemon from starting. A file that is not a document is renamed to
`NAME.damaged-…`, and the daemon starts without it. Of a document with entries that cannot be read,
the others are used, and the file as it was stays beside it as `NAME.rejected-…`. The log says so in
each case; what is missing must be defined again.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import structlog

from daemon.errors import CannotStart
from daemon.state.private_files import read_private

log = structlog.get_logger()

T = TypeVar("T")


def load_kept(path: Path, read: Callable[[str, list[str]], T], nothing: T) -> T:
    """What `read` makes of the file; it adds the entries that it cannot use to a list. `nothing`:
    there is no file, or none that can be used."""
    rejected: list[str] = []
    try:
        text = read_private(path)
        found = read(text, rejected)
    except FileNotFoundError:
        return nothing
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as problem:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns():x}")
        path.rename(aside)
        log.error("state.file_damaged", file=str(path), kept=str(aside), error=str(problem))
        return nothing
    if rejected:
        aside = path.with_name(f"{path.name}.rejected-{crc32(text.encode()):08x}")
        _keep_as(aside, path)
        log.error("state.entries_rejected", file=str(path), kept=str(aside), entries=rejected)
    return found


def _keep_as(aside: Path, path: Path) -> None:
    """A second name for the file as it is now; it needs no room. The next save gives the first name
    to another file."""
    try:
        aside.hardlink_to(path)
    except FileExistsError:
        # An earlier start has kept the same.
        return
    except OSError as error:
        log.error("state.not_kept", file=str(path), error=str(error))
