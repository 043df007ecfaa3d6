"""Runs all tests as five processes side by side, and ends as the worst of them did.

    python -m tests.run

The tests on Spark wait for a JVM most of the time, the crash tests for disks and processes, those
of a fleet for what was broken to be back: one after the other all of them take twice as long. Those
on Spark and the crash tests would be the last to end, so that the others stand back for them.
What the first process says is shown as it comes, what the others say when they are done.
"""

import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

LONGEST: Final = (("tests/spark",), ("tests/crash",))
BESIDE: Final = (
    *LONGEST,
    ("tests/fleet", "tests/postgres", "tests/valkey", "tests/browser"),
    ("tests/ops", "tests/rest"),
)
ROOT: Final = Path(__file__).resolve().parent.parent
PYTEST: Final = (sys.executable, "-m", "pytest")
NICE: Final = ("nice", "-n", "5")


def main() -> int:
    with ExitStack() as stack:
        beside = [(group, *_start(group, stack)) for group in BESIDE]
        rest = [*PYTEST, *(f"--ignore={part}" for group in BESIDE for part in group)]
        codes = [subprocess.run([*NICE, *rest], cwd=ROOT, check=False).returncode]
        for group, process, said in beside:
            codes.append(process.wait())
            print(f"\n{', '.join(group)}, beside it:", flush=True)
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    return max(codes)


def _start(group: tuple[str, ...], stack: ExitStack) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Ended, if it still runs, when the stack is left."""
    said = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    command = [*PYTEST, *group] if group in LONGEST else [*NICE, *PYTEST, *group]
    process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process, said


if __name__ == "__main__":
    sys.exit(main())
