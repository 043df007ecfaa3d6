"""The files that a browser loads for the page: modules, styles and the mark, read once.

They are served under the digest of all of them. A module imports the others by relative path, so a
page and all that it loads always have the same version, and a browser may cache them forever. They
are small and stay in memory: no request touches the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Final

TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Assets:
    digest: str
    by_name: Mapping[str, Asset]


def load_assets() -> Assets:
    found = {}
    digest = sha256()
    static = files("daemon.http.page") / "static"
    for file in sorted(static.iterdir(), key=lambda entry: entry.name):
        suffix = file.name.rpartition(".")[2]
        if suffix in TYPES:
            found[file.name] = Asset(file.read_bytes(), TYPES[suffix])
            digest.update(file.name.encode() + b"\0" + found[file.name].content)
    return Assets(digest.hexdigest()[:16], found)
