"""Loads the settings: flags override the environment, and the environment overrides the file.

Each of the three is read into a `Source` (values, and where each was written). The sources are
merged, and the models of actors/config/settings.py check the result once. Every problem is reported
as one line that begins with where the value was written (daemon/config/problems.py).
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from actors.config.http import HttpHandler
from actors.config.presets import find_preset
from actors.config.section import Clash, merge
from actors.config.settings import Settings, filled_in
from daemon.config.problems import describe, written_at
from daemon.config.yaml_source import KeyPath, Source, read_scalar, read_yaml
from daemon.errors import ConfigError
from forebay.places import default_socket, default_state_dir

PREFIX: Final = "FOREBAY_"
PLACES: Final[Mapping[str, KeyPath]] = {
    "socket": ("socket", "path"),
    "state_dir": ("state_dir",),
    "http": ("http", "listen"),
}
"""Settings that have their own flag (`--state-dir`) and variable (`FOREBAY_STATE_DIR`)."""

_NOT_SETTINGS = re.compile(
    r"FOREBAY_(?:CONFIG|TRACEBACK|TEST_.*"
    # Kubernetes sets these in every pod if a Service is named forebay.
    r"|SERVICE_(?:HOST|PORT.*)|PORT|PORT_\d+_.*)"
)
_SET_KEY_PART = re.compile(r'"([^"]+)"|([^."]+)')
_SET_KEY = re.compile(rf"(?:{_SET_KEY_PART.pattern})(?:\.(?:{_SET_KEY_PART.pattern}))*")


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: Mapping[KeyPath, str]

    def origin(self, path: KeyPath) -> str:
        """Where the value of this key was written."""
        written = written_at(path, self.origins)
        preset = self._preset(path)
        # A preset that a queue names overrides what the defaults say.
        beats_defaults = preset and (*path[:2], "handler", "preset") in self.origins
        if written in self.origins and (written == path or not beats_defaults):
            return self.origins[written]
        return preset or "default"

    def _preset(self, path: KeyPath) -> str:
        """The preset that a handler's key comes from; empty if it comes from none."""
        settings = self.settings
        if path[0] == "defaults":
            queue, keys = settings.defaults, path[1:]
        elif path[0] == "queues" and len(path) > 2:
            queue, keys = settings.queues[path[1]], path[2:]
        else:
            return ""
        name = queue.handler.preset if isinstance(queue.handler, HttpHandler) else None
        if name is None or keys[0] != "handler":
            return ""
        found: Any = find_preset(name, settings.presets_dir).handler
        for key in keys[1:]:
            found = found.get(key) if isinstance(found, dict) else None
        return "" if found is None else f"preset {name}"


def load(
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    flags: Mapping[str, str | None] | None = None,
) -> Settings:
    """The settings in force. Raises ConfigError with one line per problem.

    `sets` are `KEY=VALUE` texts; `flags` are the values of `PLACES`, None if not given.
    """
    return load_with_origins(file, env, sets, flags).settings


def load_with_origins(
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    flags: Mapping[str, str | None] | None = None,
) -> Loaded:
    env = env or {}
    named = env.get("FOREBAY_CONFIG")
    file = file or (Path(named) if named else None)
    written = _from_file(file) if file else Source()
    tree, origins = written.tree, written.origins
    for source in (_from_environment(env, tree), _from_sets(sets), _from_flags(flags or {})):
        tree = merge(tree, source.tree)
        origins = origins | source.origins
    _fill_in_places(tree, origins, env)
    with suppress(Clash):  # The models report it.
        tree = filled_in(tree)
    try:
        return Loaded(Settings.model_validate(tree), origins)
    except ValidationError as error:
        raise ConfigError(*describe(error, tree, origins)) from error


def _from_file(file: Path) -> Source:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    return read_yaml(data, str(file))


def _from_environment(env: Mapping[str, str], file_tree: Mapping[str, Any]) -> Source:
    """An empty variable counts as not set: compose files and units often have some."""
    source = Source()
    for name, text in sorted(env.items()):
        key = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or not text or _NOT_SETTINGS.fullmatch(name):
            continue
        if key in PLACES:
            _put(source, PLACES[key], text, name)
        else:
            _put(source, _spelled(key.split("__"), file_tree), _value(text, name), name)
    return source


def _spelled(parts: Iterable[str], file_tree: Any) -> KeyPath:
    """Keys are lower case, variables are not. A queue `CRM` of the file is still found."""
    path: KeyPath = ()
    for part in parts:
        known = file_tree if isinstance(file_tree, dict) else {}
        key = next((key for key in known if key.lower() == part), part)
        file_tree = known.get(key)
        path = (*path, key)
    return path


def _from_sets(sets: Iterable[str]) -> Source:
    source = Source()
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not _SET_KEY.fullmatch(key):
            raise ConfigError(f"--set: {text!r} is not KEY=VALUE, as spool.max_bytes=2Gi")
        parts = _SET_KEY_PART.findall(key)
        path = tuple(quoted or plain for quoted, plain in parts)
        _put(source, path, _value(value, f"--set {key}"), "--set")
    return source


def _from_flags(flags: Mapping[str, str | None]) -> Source:
    source = Source()
    for name, text in flags.items():
        if text is not None:
            _put(source, PLACES[name], text, f"--{name.replace('_', '-')}")
    return source


def _value(text: str, origin: str) -> Any:
    try:
        return read_scalar(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _put(source: Source, path: KeyPath, value: Any, origin: str) -> None:
    node = source.tree
    for key in path[:-1]:
        if not isinstance(node.get(key), dict):
            node[key] = {}
        node = node[key]
    node[path[-1]] = value
    _note(source, path, value, origin)


def _note(source: Source, path: KeyPath, value: Any, origin: str) -> None:
    source.origins[path] = origin
    if isinstance(value, dict):
        for key, child in value.items():
            _note(source, (*path, key), child, origin)


def _fill_in_places(
    tree: dict[str, Any], origins: dict[KeyPath, str], env: Mapping[str, str]
) -> None:
    """Fills in this user's default path if a path is missing or null."""
    if tree.get("state_dir") is None:
        tree["state_dir"] = str(default_state_dir(env))
        origins["state_dir",] = "default"
    section = tree.setdefault("socket", {})
    if isinstance(section, dict) and section.get("path") is None:
        section["path"] = str(default_socket(env))
        origins["socket", "path"] = "default"
