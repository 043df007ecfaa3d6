"""Lets the user edit a payload in their editor."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from forebay.errors import ForebayError


def edit_bytes(old: bytes) -> bytes:
    """Opens $VISUAL, $EDITOR or vi on a private file with the bytes; returns the edited bytes."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="forebay-") as directory:
        file = Path(directory) / "payload"
        file.write_bytes(old)
        try:
            done = subprocess.run([*shlex.split(editor), str(file)], check=False)
        except (FileNotFoundError, PermissionError) as error:
            raise ForebayError(
                f"the editor {editor!r} cannot be started: set $EDITOR, or give --payload-file"
            ) from error
        if done.returncode:
            raise ForebayError(f"the editor exited with {done.returncode}: nothing changed")
        new = file.read_bytes()
    # Editors append a final line feed that the user did not type.
    return new[:-1] if new.endswith(b"\n") and not old.endswith(b"\n") else new


def read_bytes(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
