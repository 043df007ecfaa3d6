"""Finds Prometheus' own checker for the tests of /metrics, or gets one without installing anything.

Looks at the PATH; if it is missing there and this is Debian, its package is downloaded (19 MB, 3 s)
and `promtool` is unpacked into a directory. Prints the directory that has it, or nothing: the
tests that need it are skipped then, and say so. Needs no root, starts no service, and gives up
after `PATIENCE_S`, so that tests without a network do not wait.

    python -m bench.observe_promtool .venv/promtool
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 15
INSIDE: Final = "usr/bin/promtool"


def find(directory: Path) -> Path | None:
    """Where it is: on the PATH, or in `directory`."""
    found = shutil.which("promtool") or shutil.which("promtool", path=str(directory))
    return None if found is None else Path(found).parent


def fetch(directory: Path) -> None:
    """Out of Debian's package. What goes wrong is said on stderr."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return
    with tempfile.TemporaryDirectory() as work:
        try:
            _run("apt-get", "download", "prometheus", at=work)
            for package in Path(work).glob("prometheus_*.deb"):
                _run("dpkg-deb", "--extract", str(package), work, at=work)
            directory.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(work) / INSIDE, directory / "promtool")
        except (OSError, subprocess.SubprocessError) as problem:
            print(f"promtool: {problem}", file=sys.stderr)


def _run(*command: str, at: str) -> None:
    subprocess.run(command, cwd=at, check=True, stdout=sys.stderr, timeout=PATIENCE_S)


def main() -> None:
    directory = Path(sys.argv[1])
    if find(directory) is None:
        fetch(directory)
    print(find(directory) or "")


if __name__ == "__main__":
    main()
