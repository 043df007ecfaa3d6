import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from actors.config.settings import Settings, stored_run_bytes_max
from actors.tiers.queue_tiers import QueueMemory
from daemon.process.malloc import return_freed_memory
from daemon.process.memory import (
    CgroupPaths,
    machine_limit_bytes,
    parse_cgroups,
    parse_limit,
    parse_mem_total,
    size_queues,
)

MIB = 1024 * 1024
GIB = 1024 * MIB
NO_LIMIT_V1 = "9223372036854771712\n"


class Machine:
    """A tree of /proc and /sys."""

    def __init__(self, root: Path, cgroup: str, total_kib: int = 16 * 1024 * 1024) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:       {total_kib} kB\nMemFree:  1 kB\n")
        self.write("proc/self/cgroup", cgroup)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limit(self) -> int:
        return machine_limit_bytes(self.root)


def test_machine_without_cgroups_has_its_memory(tmp_path: Path) -> None:
    assert Machine(tmp_path, "").limit() == 16 * GIB


def test_smallest_limit_up_the_tree_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/system.slice/forebay.service\n")
    cgroup = "sys/fs/cgroup/system.slice"
    machine.write(f"{cgroup}/forebay.service/memory.max", "max\n")
    assert machine.limit() == 16 * GIB
    machine.write(f"{cgroup}/forebay.service/memory.max", f"{4 * GIB}\n")
    assert machine.limit() == 4 * GIB
    machine.write(f"{cgroup}/memory.max", f"{2 * GIB}\n")
    assert machine.limit() == 2 * GIB
    machine.write("sys/fs/cgroup/memory.max", f"{1 * GIB}\n")
    assert machine.limit() == 1 * GIB
    # A neighbour's limit is not this process's.
    machine.write(f"{cgroup}/other.service/memory.max", "1000\n")
    assert machine.limit() == 1 * GIB


def test_limit_above_the_memory_is_the_memory(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a\n", total_kib=1024)
    machine.write("sys/fs/cgroup/a/memory.max", f"{GIB}\n")
    assert machine.limit() == 1 * MIB


def test_throttling_limit_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a\n")
    machine.write("sys/fs/cgroup/a/memory.max", f"{2 * GIB}\n")
    machine.write("sys/fs/cgroup/a/memory.high", f"{GIB}\n")
    assert machine.limit() == GIB


def test_first_version_of_cgroups(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "9:name=systemd:/\n4:memory,hugetlb:/docker/abc\n0::/\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT_V1)
    machine.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", f"{3 * GIB}\n")
    assert machine.limit() == 3 * GIB


def test_container_that_sees_its_own_cgroup_at_the_mount(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/docker/of-the-host\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    assert machine.limit() == GIB
    machine = Machine(tmp_path / "second", "0::/../../elsewhere\n")
    machine.write("sys/fs/cgroup/memory.max", f"{GIB}\n")
    machine.write("sys/elsewhere/memory.max", "1000\n")
    assert machine.limit() == GIB


def test_machine_without_proc_is_asked_otherwise(tmp_path: Path) -> None:
    assert machine_limit_bytes(tmp_path) > MIB


def test_real_machine_has_a_limit() -> None:
    assert machine_limit_bytes() > MIB


@pytest.mark.parametrize(
    "text, limit", [("1024\n", 1024), ("max\n", None), ("", None), ("-1", None), ("0\n", 0)]
)
def test_limits_are_numbers_or_none(text: str, limit: int | None) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    "text, paths",
    [
        ("", CgroupPaths(None, None)),
        ("0::/a:b/c\n", CgroupPaths("/a:b/c", None)),
        ("5:cpu,memory:/x\n0::/y\n", CgroupPaths("/y", "/x")),
        ("5:memoryless:/x\nnonsense\n", CgroupPaths(None, None)),
    ],
)
def test_cgroup_lines(text: str, paths: CgroupPaths) -> None:
    assert parse_cgroups(text) == paths


@pytest.mark.parametrize("text", ["", "MemTotal:", "MemTotal: many kB", "MemFree: 5 kB"])
def test_memory_that_is_not_said_is_none(text: str) -> None:
    assert parse_mem_total(text) is None


# The shares.


def settings(percent: float, ratio: float = 0.8, **sections: Any) -> Settings:
    memory = {"queue_memory_percent": percent, "memory_limit_ratio": ratio}
    return Settings.model_validate({"memory": memory, **sections})


def test_without_a_share_everything_is_as_configured() -> None:
    with capture_logs() as logs:
        assert size_queues(settings(0), GIB) == QueueMemory(None, 16 * MIB, 16 * MIB)
    assert logs == []


def test_share_is_split_between_spool_and_warm() -> None:
    # 50 % of 80 % of 10 GiB is 4 GiB, of which spooler and router need no more than they want.
    with capture_logs() as logs:
        assert size_queues(settings(50), 10 * GIB) == QueueMemory(
            4 * GIB - 32 * MIB, 16 * MIB, 16 * MIB
        )
    assert logs == []


def test_spool_that_wants_more_than_its_share_is_capped_and_logged() -> None:
    wanting = settings(50, spool={"inmemory_bytes": "2Gi"})
    with capture_logs() as logs:
        assert size_queues(wanting, 10 * GIB) == QueueMemory(3 * GIB - 16 * MIB, 1 * GIB, 16 * MIB)
    (entry,) = logs
    assert entry["event"] == "memory.inmemory_bytes_capped"
    assert (entry["configured"], entry["used"]) == ("2Gi", "1Gi")


def test_largest_run_always_fits() -> None:
    with capture_logs() as logs:
        sizes = size_queues(settings(1, ratio=0.05), 64 * MIB)
    assert sizes.bytes_max is not None
    assert sizes.bytes_max >= stored_run_bytes_max(settings(1).socket.max_run_bytes)
    assert logs[0]["event"] == "memory.share_is_too_small"


@given(
    percent=st.floats(0.01, 100),
    ratio=st.floats(0.05, 1),
    limit=st.integers(MIB, 1024 * GIB),
    wanted=st.integers(64 * 1024, 64 * GIB),
)
def test_parts_never_exceed_the_share(
    percent: float, ratio: float, limit: int, wanted: int
) -> None:
    given_settings = settings(percent, ratio, spool={"inmemory_bytes": wanted})
    with capture_logs() as logs:
        sizes = size_queues(given_settings, limit)
    assert sizes.bytes_max is not None
    run_bytes = stored_run_bytes_max(given_settings.socket.max_run_bytes)
    share = max(int(limit * ratio * percent / 100), run_bytes + 128 * 1024)
    assert sizes.bytes_max + sizes.inmemory_bytes + sizes.in_hand_bytes == share
    assert sizes.bytes_max >= run_bytes
    assert 64 * 1024 <= sizes.inmemory_bytes <= wanted
    assert 64 * 1024 <= sizes.in_hand_bytes <= 16 * MIB
    was_capped = "memory.inmemory_bytes_capped" in [entry["event"] for entry in logs]
    assert was_capped == (sizes.inmemory_bytes < wanted)


# malloc.


def resident_mib_after_runs(tuned: bool) -> int:
    """Of a process that held runs of growing size between small objects, and let go of them."""
    code = f"""
import sys
from daemon.process.malloc import return_freed_memory
if {tuned}:
    assert return_freed_memory()
for size in (2 << 20, 4 << 20):
    runs = [bytes(size)]
    del runs
kept = []
runs = []
for _ in range(100):
    runs.append(b"x" * (1 << 20))
    kept.append([bytes(700)])
del runs
status = open("/proc/self/status").read().splitlines()
print([line.split()[1] for line in status if line.startswith("VmRSS")][0])
"""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout) // 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's malloc")
def test_memory_of_runs_that_are_gone_is_given_back() -> None:
    assert resident_mib_after_runs(tuned=False) - resident_mib_after_runs(tuned=True) > 50


def test_operators_word_about_malloc_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    assert not return_freed_memory()
