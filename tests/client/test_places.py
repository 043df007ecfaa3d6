import os
from pathlib import Path

import pytest

from forebay.places import SYSTEM_SOCKET, default_socket, socket_candidates


@pytest.fixture
def _person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who is not root. After `tmp_path`: pytest would not trust its own directory."""
    monkeypatch.setattr(os, "getuid", lambda: 4321)


@pytest.mark.usefixtures("_person")
def test_a_client_looks_for_its_own_daemon_and_then_for_the_hosts(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert socket_candidates(env) == [tmp_path / "forebay" / "forebay.sock", SYSTEM_SOCKET]
    assert socket_candidates(env)[0] == default_socket(env)


def test_a_named_socket_is_the_only_one(tmp_path: Path) -> None:
    env = {"FOREBAY_SOCKET": "/x/s", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert socket_candidates(env) == [Path("/x/s")]


def test_root_looks_for_the_hosts_daemon_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert socket_candidates({"HOME": "/root"}) == [SYSTEM_SOCKET]


@pytest.mark.usefixtures("_person")
def test_somebody_without_a_home_looks_for_the_hosts_daemon() -> None:
    assert SYSTEM_SOCKET in socket_candidates({})
