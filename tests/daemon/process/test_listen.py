import fcntl
import grp
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.config.settings import SocketSettings
from daemon.errors import ConfigError
from daemon.process.listen import CannotListen, open_socket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "forebay.sock"


@pytest.fixture
def listening(path: Path) -> Iterator[Path]:
    """Somebody else's socket, in use."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        yield path


def settings(path: Path, **more: Any) -> SocketSettings:
    return SocketSettings.model_validate({"path": path, **more})


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_socket_is_opened_in_a_directory_that_is_made_for_it(path: Path) -> None:
    with open_socket(settings(path)):
        assert can_connect(path)
        assert mode_of(path.parent) == 0o755


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_socket_has_the_mode_that_is_asked_for(path: Path, mode: int) -> None:
    umask = os.umask(0o022)
    try:
        with open_socket(settings(path, mode=f"{mode:04o}")):
            assert mode_of(path) == mode
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)


def test_nobody_can_connect_before_mode_and_owner_are_right(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def chown(target: Path, uid: int, gid: int) -> None:
        seen.append((mode_of(target), can_connect(target)))

    def chmod(target: Path, mode: int) -> None:
        seen.append((mode_of(target), can_connect(target)))

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(Path, "chmod", chmod)
    with open_socket(settings(path)):
        assert can_connect(path)
    assert seen == [(0, False), (0, False)]


@pytest.mark.parametrize("by_name", [True, False])
def test_owner_and_group_are_given_by_name_or_number(path: Path, by_name: bool) -> None:
    owner = pwd.getpwuid(os.getuid()).pw_name if by_name else str(os.getuid())
    group = grp.getgrgid(os.getgid()).gr_name if by_name else str(os.getgid())
    with open_socket(settings(path, owner=owner, group=group)):
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid())


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_socket_belongs_to_the_group_that_is_asked_for(path: Path) -> None:
    with open_socket(settings(path, owner="65534", group="65533")):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65533)
        assert mode_of(path) == 0o660


@pytest.mark.parametrize(
    "key,text",
    [("owner", "there is no user nobody-here"), ("group", "there is no group nobody-here")],
)
def test_unknown_owner_or_group_is_named(path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_socket(settings(path, **{key: "nobody-here"}))
    assert not path.exists()


def test_owner_that_cannot_be_set_leaves_no_socket_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chown(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    with pytest.raises(CannotListen, match="owner 0 and group as is: Operation not permitted"):
        open_socket(settings(path, owner="0"))
    assert not path.exists()


def test_stale_socket_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with open_socket(settings(path)):
        assert can_connect(path)


def test_socket_that_is_in_use_is_left_alone(listening: Path) -> None:
    before = listening.stat().st_ino
    with pytest.raises(CannotListen, match=f"another process listens on {listening}"):
        open_socket(settings(listening))
    assert listening.stat().st_ino == before
    assert can_connect(listening)


def test_socket_in_use_with_a_full_backlog_is_not_stale(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(str(path))
            with pytest.raises(CannotListen, match="listens on"):
                open_socket(settings(path))
        finally:
            for client in waiting:
                client.close()
    assert path.exists()


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_what_is_no_socket_is_never_removed(path: Path, what: str) -> None:
    path.parent.mkdir()
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to("/nowhere")
    with pytest.raises(CannotListen, match="is not a socket: remove it"):
        open_socket(settings(path))
    assert path.is_symlink() or path.exists()


def test_path_that_does_not_fit_is_refused_with_its_length(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    with pytest.raises(CannotListen, match=rf"has {len(str(long))} bytes, more than 107"):
        open_socket(SocketSettings.model_construct(path=long, owner=None, group=None))


def test_path_of_exactly_the_limit_works(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (107 - len(str(tmp_path)) - 1))
    with open_socket(settings(path)):
        assert can_connect(path)


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotListen, match="cannot be created: Not a directory"):
        open_socket(settings(tmp_path / "file" / "sub" / "s.sock"))


def test_two_daemons_do_not_open_sockets_in_a_directory_at_once(path: Path) -> None:
    path.parent.mkdir()
    other = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(CannotListen, match="another daemon is just opening a socket"):
        open_socket(settings(path))
    os.close(other)
    with open_socket(settings(path)):
        pass


def test_close_removes_the_socket(path: Path) -> None:
    open_socket(settings(path)).close()
    assert not path.exists()


def test_close_leaves_a_socket_that_is_another_daemons(path: Path) -> None:
    first = open_socket(settings(path))
    path.unlink()
    with open_socket(settings(path)):
        first.close()
        assert can_connect(path)
