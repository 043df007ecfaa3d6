"""What lies in a landing zone."""

import json
from pathlib import Path
from typing import Any

from actors.ports.handler import Handler
from tests.daemon.handlers.batches import opened


def file(path: Path, **settings: Any) -> Handler:
    return opened({"type": "file", "path": str(path), **settings})


def payloads(path: Path) -> list[str]:
    return [json.loads(line)["payload"] for line in path.read_text().splitlines()]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.part"))


def whole(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix != ".part")


def all_payloads(directory: Path) -> list[str]:
    """Of the files that are whole, in the order of their names."""
    return [payload for path in whole(directory) for payload in payloads(path)]
