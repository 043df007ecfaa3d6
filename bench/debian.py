"""Finds programs of other projects that tests use, or gets them without installing anything.

Each is looked for on the PATH. On Debian the package of a missing one is downloaded, with the
libraries that it names, and unpacked: the program goes into a directory, as a script that starts it
with these libraries. Prints that directory. Tests whose program cannot be had are skipped, and say
so. Needs no root, starts no service, and gives up after `PATIENCE_S` per step, so that tests
without a network do not wait.

    python -m bench.debian .venv/tools promtool pgbouncer
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

PATIENCE_S: Final = 60


class Tool(NamedTuple):
    package: str
    inside: str
    """Where the package has it."""
    has_libraries: bool
    """Whether it needs libraries of other packages."""


TOOLS: Final = {
    "promtool": Tool("prometheus", "usr/bin/promtool", False),
    "pgbouncer": Tool("pgbouncer", "usr/sbin/pgbouncer", True),
}
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
EVERYWHERE: Final = "libc6"
LAUNCHER: Final = """#!/bin/sh
LD_LIBRARY_PATH={libraries} exec {program} "$@"
"""


def find(name: str, directory: Path) -> str | None:
    """Where it is: on the PATH, or in `directory`."""
    return shutil.which(name, path=PATH) or shutil.which(name, path=str(directory))


def fetch(name: str, directory: Path) -> None:
    """Puts it into `directory`. What goes wrong is said on stderr."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return
    tool = TOOLS[name]
    with tempfile.TemporaryDirectory() as name_of_work:
        work = Path(name_of_work)
        try:
            try:
                _download(work, tool, ())
            except subprocess.CalledProcessError:
                _download(work, tool, _own_lists(work))
            for package in work.glob("*.deb"):
                _run("dpkg-deb", "--extract", str(package), "root", at=work)
            _keep(work / "root", tool, directory / name)
        except (OSError, subprocess.SubprocessError) as problem:
            print(f"{name}: {problem}", file=sys.stderr)


def _download(work: Path, tool: Tool, options: tuple[str, ...]) -> None:
    libraries: set[str] = set()
    if tool.has_libraries:
        depends = _run("apt-cache", *options, "depends", tool.package, at=work)
        libraries = set(re.findall(r"Depends: (lib\S+)", depends)) - {EVERYWHERE}
    _run("apt-get", *options, "download", tool.package, *sorted(libraries), at=work)


def _own_lists(work: Path) -> tuple[str, ...]:
    """Options of apt for a machine that has no lists of packages, or old ones."""
    options = tuple(f"-oDir::{what}={work / 'apt'}" for what in ("State::lists", "Cache"))
    (work / "apt" / "partial").mkdir(parents=True)
    _run("apt-get", *options, "update", at=work)
    return options


def _keep(root: Path, tool: Tool, launcher: Path) -> None:
    """Of what was unpacked: the program, and the libraries if it needs any."""
    files = launcher.with_suffix(".files")
    files.mkdir(parents=True, exist_ok=True)
    program = files / launcher.name
    shutil.copy(root / tool.inside, program)
    for library in root.rglob("lib*.so.*") if tool.has_libraries else ():
        shutil.copy(library, files)
    launcher.write_text(
        LAUNCHER.format(libraries=shlex.quote(str(files)), program=shlex.quote(str(program)))
    )
    launcher.chmod(0o755)


def _run(*command: str, at: Path) -> str:
    done = subprocess.run(
        command, cwd=at, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
    )
    return done.stdout


def main() -> None:
    directory, *names = sys.argv[1:]
    tools = Path(directory).resolve()
    for name in names:
        if find(name, tools) is None:
            fetch(name, tools)
    print(tools)


if __name__ == "__main__":
    main()
