"""Who this daemon is: 16 bytes that stay the same as long as its state directory does.

In a fleet runs are known by them to belong to this daemon's journal, whatever the host is called.
The file is made once, and durable before anybody hears of what is in it; a state directory that is
copied to a second host makes two daemons with one name, which the shared stores cannot tell apart.
"""

from pathlib import Path
from typing import Final

from daemon.errors import CannotStart
from daemon.state.private_files import read_private, replace_private
from forebay.ids import RUN_ID_BYTES, new_run_id

FILE: Final = "daemon.id"


def daemon_id(state_dir: Path) -> bytes:
    """Read, or made if there is none yet. CannotStart if what is there is no id."""
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
