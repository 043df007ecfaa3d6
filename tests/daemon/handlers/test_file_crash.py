"""A process that is killed while it writes files: what the next life makes of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from actors.model.outcomes import Report
from daemon.handlers.file.handler import FileDelivery
from tests.daemon.handlers.batches import HANG_S, deliver, slice_of
from tests.daemon.handlers.zone import all_payloads, file, parts, payloads, whole

WRITE_AND_DIE = """
import os, sys, trio
from pathlib import Path
from tests.daemon.handlers.batches import deliver, slice_of
from tests.daemon.handlers.zone import file

async def main():
    handler = file(Path(sys.argv[1]), roll_interval="1h")
    await deliver(handler, slice_of([b"delivered"]))
    os.write(1, b"delivered")
    os.kill(os.getpid(), 9)

trio.run(main)
"""


def write_and_die(pattern: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, str(pattern)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )


async def test_what_a_killed_process_had_delivered_is_finished_by_the_next(tmp_path: Path) -> None:
    pattern = tmp_path / "{time}.jsonl"
    died = write_and_die(pattern)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, b"delivered"), died.stderr
    assert not whole(tmp_path)
    assert [payloads(part) for part in parts(tmp_path)] == [["delivered"]]
    handler = file(pattern, roll_interval="1h")
    assert isinstance(handler, FileDelivery)
    assert await deliver(handler, slice_of([b"next"])) == Report()
    await handler.attended.wait()
    assert all_payloads(tmp_path) == ["delivered"]
    await handler.aclose()
    assert all_payloads(tmp_path) == ["delivered", "next"]
    assert not parts(tmp_path)
