"""The daemon's id: 16 bytes that stay the same as long as its state directory exists.

In a fleet the id, not the host name, says which runs belong to this daemon's journal. The file is
made once, and is durable before the id is used. A state directory that is copied to a second host
makes two daemons with the same id, which the shared stores cannot tell apart.
"""

from pathlib import Path
from typing import Final

from daemon.errors import CannotStart
from daemon.state.private_files import read_private, replace_private
from forebay.ids import RUN_ID_BYTES, new_run_id

FILE: Final = "daemon.id"


def daemon_id(state_dir: Path) -> bytes:
    """Reads the id, or makes it if there is none. Raises CannotStart if the file is invalid."""
    path = state_dir / FILE
    try:
        text = read_private(path).strip()
    except FileNotFoundError:
        return _make(path)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != RUN_ID_BYTES:
        raise CannotStart(
            f"{path} is not the id of a daemon (32 hex digits): if the journal in this directory "
            "was never part of a fleet, remove the file; otherwise bring it back from a backup"
        )
    return found


def _make(path: Path) -> bytes:
    made = new_run_id()
    replace_private(path, made.hex() + "\n")
    return made
