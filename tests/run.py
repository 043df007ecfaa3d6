"""Runs all tests as two processes side by side, and ends as the worse of them did.

    python -m tests.run

The tests on Spark wait for a JVM most of the time, the crash tests for disks and processes: one
after the other they take half as long again. What the first says is shown as it comes, what the
second says when it is done.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SPARK: Final = "tests/spark"
ROOT: Final = Path(__file__).resolve().parent.parent


def main() -> int:
    pytest = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryFile() as said:
        beside = subprocess.Popen([*pytest, SPARK], cwd=ROOT, stdout=said, stderr=said)
        try:
            code = subprocess.run([*pytest, f"--ignore={SPARK}"], cwd=ROOT, check=False).returncode
            beside.wait()
        except BaseException:
            beside.terminate()
            raise
        print(f"\n{SPARK}, beside it:", flush=True)
        said.seek(0)
        shutil.copyfileobj(said, sys.stdout.buffer)
    return max(code, beside.returncode)


if __name__ == "__main__":
    sys.exit(main())
