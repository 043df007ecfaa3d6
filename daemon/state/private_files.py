"""Files that no other user may read or replace.

The state directory holds payloads and controls the daemon. So the daemon does not start if other
users may write to the directory, and only its user may read the files in it.

Landing directories are often shared with other users on purpose. There the daemon follows no
symbolic links, and writes only to regular files that it owns. In a directory that no other user
may write to, links come from the operator and are followed.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

from daemon.errors import CannotStart

PRIVATE_MODE: Final = 0o600
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def check_private_directory(directory: Path) -> None:
    """Raises CannotStart if another user may put files into the directory."""
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise CannotStart(
            f"the directory {directory} belongs to user {found.st_uid}, and the daemon runs as "
            f"user {os.geteuid()}: chown it, or run the daemon as its owner"
        )
    if found.st_mode & WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise CannotStart(
            f"other users may write the directory {directory} (mode {mode:04o}): "
            f"chmod go-w {directory}"
        )


def others_may_write(directory: Path) -> bool:
    found = directory.stat()
    return bool(found.st_uid not in (0, os.geteuid()) or found.st_mode & WRITABLE_BY_OTHERS)


def open_own(path: Path, flags: int, mode: int) -> int:
    """Opens a file like os.open. In a directory that others may write to, raises OSError unless it
    is a regular file of this user, and not a link."""
    if not others_may_write(path.parent):
        return os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        problem = "is a symbolic link in a directory that others may write, and is not followed"
        raise OSError(errno.ELOOP, problem, str(path)) from error
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
        return fd
    os.close(fd)
    problem = "is not a file of the daemon's own, in a directory that others may write"
    raise OSError(errno.EPERM, problem, str(path))


def read_private(path: Path) -> str:
    """The text of a private file. Makes it readable only by its owner if it is not."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd) as file:
        if stat.S_IMODE(os.fstat(fd).st_mode) & ~PRIVATE_MODE:
            os.fchmod(fd, PRIVATE_MODE)
        return file.read()


def replace_private(path: Path, text: str) -> None:
    """Replaces a file as a whole: readable only by its owner, durable on return."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
