"""Opens the daemon's Unix listening socket and removes it at the end, or takes over systemd's.

At its start the daemon checks that it can open the socket (`prepare_socket`). It opens the socket
as the last step, when it can answer, so every client that connects is served.

An existing socket file is replaced only if no process listens on it. The file gets its mode, owner
and group before a client can connect: `listen` comes last. The parent directory is locked
meanwhile. Otherwise, of two daemons that start at once, one could mistake the other's socket,
bound but not yet listening, for a stale one.

A socket that systemd passes (socket activation) is used as it is: its mode, owner and backlog come
from the socket unit, and its file stays at the end. Clients that connect while no daemon runs wait
in its backlog for the next one.

What it cannot do: prevent a user who may write to the directory from removing or replacing the
file later.
"""

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog
import trio

from actors.config.settings import SOCKET_PATH_BYTES_MAX, SocketSettings
from daemon.errors import CannotStart, ConfigError
from daemon.process.systemd import InheritedFd, take_inherited

log = structlog.get_logger()

BACKLOG: Final = 1024
DIRECTORY_MODE: Final = 0o755


class CannotListen(CannotStart):
    """The socket cannot be opened; the text says why."""


class ListeningSocket:
    """The socket and its file. `close` removes the file if this process made it and it was not
    replaced. Call it when no task accepts from `listener` any more."""

    def __init__(self, path: Path, sock: socket.socket, *, is_inherited: bool = False) -> None:
        self.path = path
        self._identity = None if is_inherited else _identity(path)
        self._sock = sock
        self.listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))

    def close(self) -> None:
        with suppress(FileNotFoundError):
            if self._identity is not None and _identity(self.path) == self._identity:
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


def prepare_socket(settings: SocketSettings) -> Callable[[], ListeningSocket]:
    """Returns a function that opens the socket later. Raises CannotListen if that cannot succeed.

    A socket that systemd passes is taken over at once: clients may be waiting in its backlog."""
    inherited = take_inherited()
    if inherited:
        taken = _take_over(inherited, settings)
        return lambda: taken
    _check(settings)
    with _locked(settings.path.parent):
        _remove_stale(settings.path)
    return partial(_open, settings)


def open_socket(settings: SocketSettings) -> ListeningSocket:
    """Takes over the socket that systemd passes, or opens the one that the settings describe.
    Raises CannotListen if that fails."""
    return prepare_socket(settings)()


def _check(settings: SocketSettings) -> tuple[int, int]:
    """The ids of the owner and group; -1 leaves them unchanged. Creates the directory."""
    path = settings.path
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise CannotListen(
            f"the socket path has {length} bytes, more than {SOCKET_PATH_BYTES_MAX}: {path}"
        )
    uid = -1 if settings.owner is None else _find_user(settings.owner)
    gid = -1 if settings.group is None else _find_group(settings.group)
    try:
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotListen(f"{path.parent} cannot be created: {error.strerror}") from error
    return uid, gid


def _open(settings: SocketSettings) -> ListeningSocket:
    path = settings.path
    uid, gid = _check(settings)
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


def _take_over(inherited: list[InheritedFd], settings: SocketSettings) -> ListeningSocket:
    names = ", ".join(name or f"descriptor {fd}" for fd, name in inherited)
    if len(inherited) > 1:
        raise CannotListen(f"systemd passes {len(inherited)} sockets instead of one: {names}")
    try:
        sock = socket.socket(fileno=inherited[0].fd)
    except OSError as error:
        raise CannotListen(f"systemd passes {names}: not a socket: {error.strerror}") from error
    if (
        sock.family != socket.AF_UNIX
        or sock.type != socket.SOCK_STREAM
        or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        sock.close()
        raise CannotListen(
            f"systemd passes {names}: it must be a Unix stream socket that listens "
            "(ListenStream=/a/path and Accept=no in the socket unit)"
        )
    path = _bound_path(sock)
    _warn_of_other_place(path, settings.path)
    return ListeningSocket(path, sock, is_inherited=True)


def _bound_path(sock: socket.socket) -> Path:
    name = sock.getsockname()
    if isinstance(name, bytes):
        # An abstract socket has no file. It is shown as systemd writes it.
        name = "@" + os.fsdecode(name[1:])
    return Path(name)


def _warn_of_other_place(path: Path, configured: Path) -> None:
    """Warns if clients and commands, which use the configured path, would not find the socket."""
    if path.resolve() != configured.resolve():
        log.warning(
            "listen.path_differs",
            listening=str(path),
            configured=str(configured),
            hint="make socket.path and ListenStream= the same",
        )
    elif not path.is_socket():
        log.warning(
            "listen.file_is_gone",
            path=str(path),
            hint="clients cannot connect: restart the socket unit",
        )


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # No client can connect before `listen`; without the umask the file would look open until then.
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
    """Removes a socket file on which no process listens. Anything else stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotListen(f"{path} cannot be checked: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} is not a socket: remove it or use another path")
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
                f"{path} exists, and it is unknown whether a process listens on it: "
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
        raise ConfigError(f"socket.owner: there is no user {name}") from None


def _find_group(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"socket.group: there is no group {name}") from None
