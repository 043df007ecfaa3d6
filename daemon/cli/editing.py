"""A few bytes in the user's own editor."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from forebay.errors import ForebayError


def edit_bytes(old: bytes) -> bytes:
    """Opens $VISUAL or $EDITOR, or vi, with the bytes in a file of the user's own."""
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
            raise ForebayError(f"the editor ended with {done.returncode}: nothing is changed")
        new = file.read_bytes()
    # An editor ends a file with a line feed that nobody has typed.
    return new[:-1] if new.endswith(b"\n") and not old.endswith(b"\n") else new


def read_bytes(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
