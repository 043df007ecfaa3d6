"""A disk that loses power: what was not synced is there in part, in any order, or not at all.

It works on real files, and keeps beside them what a real disk would have: for each file the bytes
of its last sync and what was written since, for the directory its entries at the last sync and
what was renamed, created and removed since. When the power goes, a new directory is made of that.

    file, not synced: every sector of every write may be there or not, a new length as well
    directory, not synced: the changes up to any moment are there, as journalling file systems do

What it cannot show: a disk that lies about its syncs. The quarantine stands outside the promise.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.crash.named_files import NamedFiles

SECTOR_BYTES: Final = 512


class PowerCut(Exception):
    """Everything ends here."""


@dataclass(slots=True)
class Node:
    """A file, whatever its name."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    """Since the last sync: what was written at which offset, or the length it was cut to."""

    def write(self, at: int, data: bytes) -> None:
        _write(self.content, at, data)
        self.pending.append((at, data))

    def cut(self, length: int) -> None:
        _cut(self.content, length)
        self.pending.append(length)

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def after_power_cut(self, rng: Random) -> bytes:
        content = bytearray(self.durable)
        share = rng.choice((0.0, 0.5, 1.0))
        for change in self.pending:
            if isinstance(change, int):
                if rng.random() < share:
                    _cut(content, change)
                continue
            at, data = change
            start = at
            while start < at + len(data):
                end = min(at + len(data), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
                if rng.random() < share:
                    _write(content, start, data[start - at : end - at])
                start = end
        return bytes(content)


def _write(content: bytearray, at: int, data: bytes) -> None:
    if at > len(content):
        content += bytes(at - len(content))
    content[at : at + len(data)] = data


def _cut(content: bytearray, length: int) -> None:
    del content[length:]
    content += bytes(length - len(content))


class ForgetfulFiles(NamedFiles):
    def __init__(self, directory: Path, cut_after: int) -> None:
        """The power goes at the call number `cut_after` that changes or syncs something."""
        super().__init__(directory)
        self._left = cut_after
        self._nodes: dict[str, Node] = {}
        self._of_fd: dict[int, Node] = {}
        self._entries: dict[str, Node] = {}
        """The directory at its last sync."""
        self._changes: list[dict[str, Node]] = []
        """The directory after each change since then."""
        if directory.exists():
            for name in self.names():
                content = (directory / name).read_bytes()
                self._nodes[name] = Node(bytearray(content), content)
        self._entries = dict(self._nodes)

    def make_what_is_left(self, directory: Path, rng: Random) -> None:
        """The spool as it is found when the power is back."""
        directory.mkdir(parents=True)
        entries = rng.choice([self._entries, *self._changes])
        for name, node in entries.items():
            (directory / name).write_bytes(node.after_power_cut(rng))

    def _step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise PowerCut

    def _changed(self) -> None:
        self._changes.append(dict(self._nodes))

    # Files.

    def open_new(self, name: str) -> int:
        if name.startswith("quarantine/"):
            return self._opened(super().open_new(name), Node())
        self._step()
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node()
            self._changed()
        else:
            node.cut(0)
        return self._opened(super().open_new(name), node)

    def open_write(self, name: str) -> int:
        return self._opened(super().open_write(name), self._nodes[name])

    def open_append(self, name: str) -> int:
        if name not in self._nodes:
            self._step()
            self._nodes[name] = Node()
            self._changed()
        return self._opened(super().open_append(name), self._nodes[name])

    def open_read(self, name: str) -> int:
        return self._opened(super().open_read(name), self._nodes[name])

    def _opened(self, fd: int, node: Node) -> int:
        self._of_fd[fd] = node
        return fd

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
        data = b"".join(parts)
        self._of_fd[fd].write(at, data)
        self._step()
        super().write(fd, [data], at)

    def append(self, fd: int, data: bytes) -> None:
        node = self._of_fd[fd]
        node.write(len(node.content), data)
        self._step()
        super().append(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        self._of_fd[fd].cut(length)
        self._step()
        super().truncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        self._of_fd[fd].cut(length)
        self._step()
        super().allocate(fd, length)

    def datasync(self, fd: int) -> None:
        self._step()
        self._of_fd[fd].sync()

    def sync(self, fd: int) -> None:
        self._step()
        self._of_fd[fd].sync()

    # The directory.

    def rename(self, old: str, new: str) -> None:
        node = self._nodes.pop(old)
        if not new.startswith("quarantine/"):
            self._nodes[new] = node
        self._changed()
        self._step()
        super().rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(self.path(old), self.path(new))

    def unlink(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._changed()
            self._step()
        super().unlink(name)

    def sync_directory(self) -> None:
        self._step()
        self._entries = dict(self._nodes)
        self._changes.clear()
