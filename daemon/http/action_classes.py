"""Names the action class of a queue, and the installed distribution that provides it.

An action class is the handler's type, plus the function of a python handler or the program of a
command: `http`, `python:scoring.model:score`, `command:sendmail`. The flow type says how a queue is
emptied: `push` by workers, `pull` by consumers that lease, `stream` by consumers that claim.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import PurePath
from typing import Final, Literal, NamedTuple

from actors.config.handlers import CommandHandler, PullHandler, PythonHandler
from actors.config.queue import QueueSettings

FlowType = Literal["push", "pull", "stream"]
OWN: Final = "forebayd"


class Plugin(NamedTuple):
    distribution: str | None
    """None if the module belongs to no installed distribution."""
    version: str | None


def action_class(settings: QueueSettings) -> str:
    match settings.handler:
        case PythonHandler(function=function):
            return f"python:{function}"
        case CommandHandler(command=command):
            return f"command:{PurePath(command[0]).name}"
        case handler:
            return handler.type


def flow_type(settings: QueueSettings, *, is_stream: bool) -> FlowType:
    if is_stream:
        return "stream"
    return "pull" if isinstance(settings.handler, PullHandler) else "push"


def plugins(classes: Iterable[str]) -> Mapping[str, Plugin]:
    """By class. Reads every installed distribution once; call it in a thread."""
    return {name: plugin_of(name) for name in sorted(set(classes))}


@cache
def plugin_of(name: str) -> Plugin:
    kind, _, rest = name.partition(":")
    if kind != "python":
        return _versioned(OWN)
    top = rest.partition(":")[0].partition(".")[0]
    found = _distributions().get(top, [])
    return _versioned(found[0]) if found else Plugin(None, None)


@cache
def _distributions() -> Mapping[str, list[str]]:
    """By top-level module."""
    return packages_distributions()


def _versioned(distribution: str) -> Plugin:
    try:
        return Plugin(distribution, version(distribution))
    except PackageNotFoundError:
        return Plugin(distribution, None)
