"""A small file system that can be filled up, and a destination that waits until it is full."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

KIB: Final = 1024
MIB: Final = 1024 * KIB


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A tmpfs; where none can be mounted, the test is skipped."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "forebay-test", path],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill_up(disk: Path) -> Path:
    """Leaves not a byte of room; the file that takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MIB, 64 * KIB, 4 * KIB, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    assert shutil.disk_usage(disk).free == 0
    return filler


class SlowReader:
    """The other end of a pipe to which a file handler writes; what comes out goes to a file."""

    def __init__(self, directory: Path) -> None:
        self.pipe = directory / "pipe"
        self.output = directory / "out.jsonl"
        os.mkfifo(self.pipe)
        self._reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        # Were the daemon to open the pipe after the reading begins, it would end at once.
        self._writer = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def read_on(self) -> None:
        os.set_blocking(self._reader, True)
        self._thread.start()

    def finish(self) -> None:
        """Returns when all writers are gone and all is read."""
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _copy(self) -> None:
        with self.output.open("wb") as output:
            while data := os.read(self._reader, 65536):
                output.write(data)
