"""The default places of the daemon's socket and state.

A service keeps them in the system's directories; a daemon that a person starts keeps them in that
person's own directories. A client looks in both places, its own first. None of these directories
can be written to by other users: a stranger must not be able to pose as the daemon.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SYSTEM_SOCKET: Final = Path("/run/forebay/forebay.sock")
SYSTEM_STATE: Final = Path("/var/lib/forebay")
SOCKET_NAME: Final = "forebay.sock"


def socket_candidates(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Where a client looks, in this order; only at `FOREBAY_SOCKET` if that is set."""
    named = env.get("FOREBAY_SOCKET")
    if named:
        return [Path(named)]
    own = default_socket(env)
    return [own] if own == SYSTEM_SOCKET else [own, SYSTEM_SOCKET]


def default_socket(env: Mapping[str, str] = os.environ) -> Path:
    """Where a daemon that is started here puts its socket."""
    given = _given_by_systemd(env, "RUNTIME_DIRECTORY")
    if given:
        return given / SOCKET_NAME
    if runs_as_service(env):
        return SYSTEM_SOCKET
    runtime = _absolute(env, "XDG_RUNTIME_DIR") or Path(f"/run/user/{os.getuid()}")
    if not os.access(runtime, os.W_OK | os.X_OK):
        # There is no login session. The state directory is the person's own too, and always exists.
        return default_state_dir(env) / SOCKET_NAME
    return runtime / "forebay" / SOCKET_NAME


def default_state_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where a daemon that is started here keeps its durable state."""
    given = _given_by_systemd(env, "STATE_DIRECTORY")
    if given:
        return given
    if runs_as_service(env):
        return SYSTEM_STATE
    state_home = _absolute(env, "XDG_STATE_HOME")
    if state_home is None:
        home = _absolute(env, "HOME")
        if home is None:
            return SYSTEM_STATE
        state_home = home / ".local" / "state"
    return state_home / "forebay"


def runs_as_service(env: Mapping[str, str] = os.environ) -> bool:
    return os.getuid() == 0 or "RUNTIME_DIRECTORY" in env or "STATE_DIRECTORY" in env


def _given_by_systemd(env: Mapping[str, str], name: str) -> Path | None:
    """The first directory that systemd made for the unit."""
    first = env.get(name, "").partition(":")[0]
    return Path(first) if first.startswith("/") else None


def _absolute(env: Mapping[str, str], name: str) -> Path | None:
    """A directory from the environment; the XDG specification says to ignore relative ones."""
    value = env.get(name, "")
    return Path(value) if value.startswith("/") else None
