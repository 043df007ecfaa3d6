"""Finds a Chromium that the browser tests and the screenshots can drive, or installs one.

Looks at CHROMIUM, at the PATH, and at what Playwright has installed. With `--install`, if none is
found, it installs the package `chromium` (as root on Debian) or Playwright's own. Prints the path,
or nothing: the browser tests are skipped then, and say so.

    python -m bench.chromium --install
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PLAYWRIGHTS: Final = Path.home() / ".cache" / "ms-playwright"
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""For a browser that talks only to a daemon on this machine."""
INSTALL_S: Final = 600


def find() -> Path | None:
    return next((path for path in candidates() if os.access(path, os.X_OK)), None)


def candidates() -> Iterator[Path]:
    if given := os.environ.get("CHROMIUM"):
        yield Path(given)
    for name in NAMES:
        if found := shutil.which(name):
            yield Path(found)
    yield from sorted(PLAYWRIGHTS.glob("chromium-*/chrome-linux*/chrome"), reverse=True)


def install() -> None:
    """Tries each way; what it says goes to stderr."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        attempt("apt-get", "update")
        attempt("apt-get", "install", "--yes", "--no-install-recommends", "chromium")
    if find() is None:
        attempt(sys.executable, "-m", "playwright", "install", "chromium")


def attempt(*command: str) -> None:
    try:
        subprocess.run(command, check=False, stdout=sys.stderr, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        print(f"{command[0]}: {problem}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install one if there is none")
    wants_one = parser.parse_args().install
    if find() is None and wants_one:
        install()
    found = find()
    if found is None:
        print("there is no Chromium: the browser tests will be skipped", file=sys.stderr)
    print(found or "")


if __name__ == "__main__":
    main()
