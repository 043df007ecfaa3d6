"""The memory of the process: finds its limit, decides how much of it runs may use, and returns
freed memory to the system.

The limit is the smallest of the machine's memory and the limits of this process's cgroups, from
its own up to the root: `memory.max` and `memory.high` in version 2, `memory.limit_in_bytes` in
version 1. It is read once, at the start; later changes are not seen.

What it cannot do: bound the process. It sizes the runs that wait in memory; pushes in flight
(`socket.inflight_bytes`), the memory of handlers, and Python itself come on top of that.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from actors.config.settings import Settings, stored_run_bytes_max
from actors.model.units import format_size
from actors.tiers.queue_tiers import IN_HAND_BYTES_MAX, QueueMemory

log = structlog.get_logger()

ROOT: Final = Path("/")
ON_THE_WAY_SHARE: Final = 1 / 4
"""Shares of the memory for runs: one for the runs that the spooler keeps, one for those that the
router holds. Both wait only briefly; runs in warm wait for a worker."""
INMEMORY_BYTES_MIN: Final = 64 * 1024
"""The minimum of spool.inmemory_bytes."""


def size_queues(settings: Settings, limit_bytes: int) -> QueueMemory:
    """Splits the memory for runs; logs where the result differs from the configuration."""
    wanted = settings.spool.inmemory_bytes
    memory = settings.memory
    if not memory.queue_memory_percent:
        return QueueMemory(None, wanted, IN_HAND_BYTES_MAX)
    share = int(limit_bytes * memory.memory_limit_ratio * memory.queue_memory_percent / 100)
    # The largest run must fit, or its queue would stall.
    run_bytes = stored_run_bytes_max(settings.socket.max_run_bytes)
    least = run_bytes + 2 * INMEMORY_BYTES_MIN
    if share < least:
        log.warning(
            "memory.share_is_too_small",
            share=format_size(share),
            used=format_size(least),
            hint="raise memory.queue_memory_percent, or lower socket.max_run_bytes",
        )
        share = least
    room = int(min(share * ON_THE_WAY_SHARE, (share - run_bytes) / 2))
    if wanted > room:
        log.warning(
            "memory.inmemory_bytes_capped",
            configured=format_size(wanted),
            used=format_size(room),
            share=format_size(share),
        )
    inmemory_bytes = min(wanted, room)
    in_hand_bytes = min(IN_HAND_BYTES_MAX, room)
    return QueueMemory(share - inmemory_bytes - in_hand_bytes, inmemory_bytes, in_hand_bytes)


def machine_limit_bytes(root: Path = ROOT) -> int:
    """The most memory that this process may use. `root` is where /proc and /sys are."""
    limits = list(_cgroup_limits(root))
    total = parse_mem_total(_read(root / "proc/meminfo"))
    if total is None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *limits])


def parse_mem_total(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal" and (words := rest.split()) and words[0].isdecimal():
            return int(words[0]) * 1024
    return None


def parse_limit(text: str) -> int | None:
    """The number in a limit file; None for `max` or a missing file."""
    text = text.strip()
    return int(text) if text.isdecimal() else None


class CgroupPaths(NamedTuple):
    unified: str | None
    memory: str | None
    """In version 1's hierarchy of the memory controller."""


def parse_cgroups(text: str) -> CgroupPaths:
    """Reads /proc/self/cgroup: lines of `number:controllers:path`."""
    unified = memory = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif "memory" in controllers.split(","):
            memory = path
    return CgroupPaths(unified, memory)


def _cgroup_limits(root: Path) -> Iterator[int]:
    paths = parse_cgroups(_read(root / "proc/self/cgroup"))
    places = []
    if paths.unified is not None:
        mounts = (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified")
        names = ("memory.max", "memory.high")
        places += [(mount, paths.unified, name) for mount in mounts for name in names]
    if paths.memory is not None:
        places.append((root / "sys/fs/cgroup/memory", paths.memory, "memory.limit_in_bytes"))
    for mount, path, name in places:
        for directory in _up_the_tree(mount, path):
            limit = parse_limit(_read(directory / name))
            if limit is not None:
                yield limit


def _up_the_tree(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup and all its ancestors. In a container the path may be the host's while the mount
    is the container's: then the directories are missing, and only the mount counts."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        parts = []
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _read(path: Path) -> str:
    """Empty if the file is missing or unreadable: it limits nothing."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
