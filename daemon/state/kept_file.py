"""Files of the state directory that are replaced as a whole: what was defined at run time.

No content of such a file prevents the daemon from starting. A file that is not a document is
renamed to `NAME.damaged-…`, and the daemon starts without it. If some entries of a document cannot
be read, the others are used, and the original file is kept as `NAME.rejected-…`. Both are logged;
the operator must define the missing entries again.
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
    """The file as parsed by `read`, which adds unusable entries to a list. Returns `nothing` if
    there is no usable file."""
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
    """Gives the current file a second name, which needs no room. The next save replaces the file
    under its first name."""
    try:
        aside.hardlink_to(path)
    except FileExistsError:
        # An earlier start has kept the same file.
        return
    except OSError as error:
        log.error("state.not_kept", file=str(path), error=str(error))
