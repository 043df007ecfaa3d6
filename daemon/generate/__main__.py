"""Writes or checks the files that are made from the table of operations."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from daemon.generate.manifest import manifest
from daemon.generate.reference import reference
from daemon.generate.typed_client import typed_client

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final[Mapping[str, Callable[[], str]]] = {
    "daemon/cli/manifest.json": manifest,
    "client/forebay/operations.py": typed_client,
    "docs/reference/operations.md": reference,
}


def stale() -> list[str]:
    """The files that are not as the table of operations wants them."""
    found = []
    for name, make in FILES.items():
        path = ROOT / name
        if not path.exists() or path.read_text() != make():
            found.append(name)
    return found


def main() -> int:
    if "--check" in sys.argv[1:]:
        names = stale()
        for name in names:
            print(f"{name} is stale: run python -m daemon.generate", file=sys.stderr)
        return 1 if names else 0
    for name in stale():
        (ROOT / name).write_text(FILES[name]())
        print(f"{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
