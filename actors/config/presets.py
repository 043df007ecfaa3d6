"""Presets: the keys of an http handler for one API, under one name.

A preset is a file NAME.yaml. The shipped ones are in the folder `presets` beside this module;
`presets_dir` has an operator's own, which win over shipped ones of the same name. `with_preset`
fills in the keys that a queue does not give itself, before defaults are merged and anything is
checked: a preset beats `defaults`, and the queue's own keys beat the preset.

A file is read when a queue names it, and again when it has changed.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from actors.config.section import Clash, Section

SHIPPED: Final = Path(__file__).with_name("presets")
FILES_MAX: Final = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_MERGED: Final = ("headers", "request", "answer")
"""Keys that hold keys: each of those is replaced alone."""


class Preset(Section):
    summary: str
    docs: str = ""
    """The address of the vendor's documentation."""
    limits: str = ""
    """The limits that the vendor documents."""
    hosts: tuple[str, ...] = ()
    """Patterns of the vendor's hosts, such as `*.salesforce.com`."""
    handler: dict[str, Any]
    """Keys of an http handler."""


def with_preset(queue: Any, directory: Path | None, where: str = "") -> Any:
    """The keys of a queue, with those of the preset that its handler names. Raises Clash if it
    does not exist; `where` is what the message puts before `handler.preset`."""
    handler = queue.get("handler") if isinstance(queue, dict) else None
    if not isinstance(handler, dict) or handler.get("type", "http") != "http":
        return queue
    name = handler.get("preset")
    if not isinstance(name, str):
        return queue
    try:
        preset = find_preset(name, directory)
    except ValueError as problem:
        raise Clash(f"{where}handler.preset: {problem}", f"{where}handler.preset") from None
    return {**queue, "handler": _filled_in(handler, preset.handler)}


def find_preset(name: str, directory: Path | None = None) -> Preset:
    """Raises ValueError if it does not exist, or if its file cannot be used."""
    path = preset_file(name, directory)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def preset_file(name: str, directory: Path | None = None) -> Path:
    """Raises ValueError if it does not exist."""
    files = _files(directory)
    if name in files:
        return files[name]
    close = get_close_matches(name, files, n=1, cutoff=0.4)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"the preset {name!r} does not exist{meant} (presets: {', '.join(files)})")


def all_presets(directory: Path | None = None) -> Iterator[tuple[str, Preset]]:
    """Raises ValueError if a file cannot be used."""
    for name in _files(directory):
        yield name, find_preset(name, directory)


def preset_for(host: str, directory: Path | None = None) -> str | None:
    """The preset for the API that a host belongs to."""
    for name, preset in all_presets(directory):
        if any(fnmatch(host.lower(), pattern) for pattern in preset.hosts):
            return name
    return None


def _filled_in(own: dict[str, Any], preset: dict[str, Any]) -> dict[str, Any]:
    both: dict[str, Any] = {"type": "http"} | preset | own
    if own.get("request") is not None and "encoding" not in own:
        # A request has no encoding: it makes the body itself.
        both.pop("encoding", None)
    for key in _MERGED:
        given, filled = own.get(key), preset.get(key)
        if isinstance(given, dict) and isinstance(filled, dict):
            if key == "headers":
                names = {str(name).lower() for name in given}
                filled = {name: text for name, text in filled.items() if name.lower() not in names}
            both[key] = filled | given
    return both


def _files(directory: Path | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in (SHIPPED, directory):
        paths = sorted(folder.glob("*.yaml"))[:FILES_MAX] if folder is not None else []
        found |= {path.stem: path for path in paths if _NAME.fullmatch(path.stem)}
    return dict(sorted(found.items()))


@lru_cache(FILES_MAX)
def _read(path: Path, _changed_ns: int) -> Preset:
    import yaml

    try:
        return Preset.model_validate(yaml.safe_load(path.read_bytes()))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path}{line}: not YAML: {error.problem or error.context}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].replace("Input should", "must")
        raise ValueError(f"{path}: {key}: {problem}" if key else f"{path}: {problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
