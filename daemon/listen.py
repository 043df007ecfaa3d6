"""Opens the daemon's Unix listening socket, and removes it again.

A socket file that is there already is replaced only if nobody listens on it. The file has its
mode, owner and group before anyone can connect: `listen` comes last. The parent directory is
locked meanwhile, so that of two daemons that start at once one does not take the other's socket,
bound but not yet listening, for a stale one.

What it cannot do: keep somebody who may write to the directory from removing or replacing the
file later.
"""

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trio

from actors.settings import SOCKET_PATH_BYTES_MAX, SocketSettings
from daemon.errors import CannotStart

BACKLOG: Final = 1024
DIRECTORY_MODE: Final = 0o755


class CannotListen(CannotStart):
    """The socket cannot be opened; the text says what is in the way."""


class ListeningSocket:
    """The socket and its file. `close` removes the file if it is still this socket's, and comes
    when nobody accepts from `listener` any more."""

    def __init__(self, path: Path, sock: socket.socket) -> None:
        self.path = path
        found = path.stat()
        self._identity = (found.st_dev, found.st_ino)
        self._sock = sock
        self.listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))

    def close(self) -> None:
        with suppress(FileNotFoundError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_socket(settings: SocketSettings) -> ListeningSocket:
    """Opens the socket that the settings describe, or raises CannotListen."""
    path = settings.path
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise CannotListen(
            f"the socket's path has {length} bytes, and at most {SOCKET_PATH_BYTES_MAX} fit: {path}"
        )
    uid = -1 if settings.owner is None else _find_user(settings.owner)
    gid = -1 if settings.group is None else _find_group(settings.group)
    try:
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotListen(f"{path.parent} cannot be created: {error.strerror}") from error
    with _locked(path.parent):
        _remove_stale(path)
        sock = _bind(path)
        try:
            os.chown(path, uid, gid)
            path.chmod(settings.mode)
            sock.listen(BACKLOG)
            return ListeningSocket(path, sock)
        except OSError as error:
            path.unlink(missing_ok=True)
            sock.close()
            raise CannotListen(
                f"{path} cannot get mode {settings.mode:04o}, owner {settings.owner or 'as is'} "
                f"and group {settings.group or 'as is'}: {error.strerror}"
            ) from error


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Nobody can connect before `listen`; without the umask the file would look open until then.
    umask = os.umask(0o777)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise CannotListen(f"{path} cannot be created: {error.strerror}") from error
    finally:
        os.umask(umask)
    return sock


def _remove_stale(path: Path) -> None:
    """Removes a socket file on which nobody listens. Anything else is left alone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotListen(f"{path} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} is not a socket, and is left alone: remove it or use another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            pass
        except BlockingIOError:
            raise CannotListen(f"another process listens on {path}, and is busy") from None
        except OSError as error:
            raise CannotListen(
                f"{path} is there, and whether somebody listens on it cannot be seen: "
                f"{error.strerror}"
            ) from error
        else:
            raise CannotListen(f"another process listens on {path}")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CannotListen(
            f"the stale socket {path} cannot be removed: {error.strerror}"
        ) from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotListen(f"{directory} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            text = f"another daemon is just opening a socket in {directory}"
        else:
            text = f"{directory} cannot be locked: {error.strerror}"
        os.close(fd)
        raise CannotListen(text) from error
    try:
        yield
    finally:
        os.close(fd)


def _find_user(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise CannotListen(f"socket.owner: there is no user {name}") from None


def _find_group(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotListen(f"socket.group: there is no group {name}") from None
