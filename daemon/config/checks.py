"""Checks that the files, secrets, modules and programs exist that a configuration names.

For `forebay config check`. It starts, connects, binds and writes nothing, and imports no module of
the user: it only looks for a python handler's module. Only `forebay run` finds out whether the
module has the function, whether an address is free and whether a server answers.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import urlsplit

from actors.config.handlers import PythonHandler
from actors.config.http import HttpHandler
from actors.config.presets import all_presets, preset_for
from actors.config.queue import QueueSettings
from actors.config.settings import Settings
from daemon.config.secrets import read_secrets
from daemon.errors import ConfigError


def find_problems(settings: Settings) -> Iterator[str]:
    """One line per problem."""
    queues = {"defaults": settings.defaults, **settings.queues}
    try:
        read_secrets(settings)
    except ConfigError as error:
        # Without them no handler can be opened.
        yield from error.problems
        return
    checks: list[Callable[[], object]] = [
        *(partial(check_handler, queue, own) for queue, own in queues.items()),
        partial(_check_presets, settings),
        partial(_check_tokens, settings),
        partial(_check_notifications, settings),
        partial(_check_events, settings),
        partial(_check_stores, settings),
    ]
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield from error.problems


def find_warnings(settings: Settings) -> Iterator[str]:
    """One line per queue whose destination is known to refuse items in 2xx answers, and whose
    handler would not notice."""
    for queue, own in {"defaults": settings.defaults, **settings.queues}.items():
        handler = own.handler
        if not isinstance(handler, HttpHandler) or handler.preset or handler.answer:
            continue
        host = urlsplit(handler.url).hostname or ""
        preset = preset_for(host, settings.presets_dir)
        if preset is not None:
            where = "defaults" if queue == "defaults" else f"queues.{queue}"
            yield (
                f"{where}.handler: {host} reports refused items in its own form: "
                f"use preset: {preset}, or describe its answers with answer"
            )


def check_handler(queue: str, settings: QueueSettings) -> None:
    if isinstance(settings.handler, PythonHandler):
        module = settings.handler.function.partition(":")[0]
        missing = missing_module(module)
        if missing:
            raise ConfigError(f"queues.{queue}.handler.function: there is no module {missing}")
        return
    from daemon.handlers import open_handler

    open_handler(queue, settings)


def missing_module(name: str) -> str:
    """The name of the missing module, or of its missing package; empty if all exist. Imports
    nothing, unlike `importlib.util.find_spec`, which imports the packages."""
    path = None
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        known = ".".join(parts[:length])
        found = (finder.find_spec(known, path) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return known
        path = spec.submodule_search_locations
        if path is None and length < len(parts):
            return ".".join(parts[: length + 1])
    return ""


def _check_presets(settings: Settings) -> None:
    directory = settings.presets_dir
    if directory is not None and not directory.is_dir():
        raise ConfigError(f"presets_dir: {directory} is not a directory")
    try:
        for _ in all_presets(directory):
            pass
    except ValueError as problem:
        raise ConfigError(f"presets_dir: {problem}") from problem


def _check_tokens(settings: Settings) -> None:
    if settings.http.listen is not None:
        from daemon.http.access import load_tokens

        load_tokens(settings.http)


def _check_notifications(settings: Settings) -> None:
    from daemon.notify.ways import check_webhooks

    check_webhooks(settings.notifications)


def _check_events(settings: Settings) -> None:
    from daemon.events import open_sink

    open_sink(settings.events, settings.state_dir)


def _check_stores(settings: Settings) -> None:
    if settings.warm.type == "valkey":
        from daemon.stores.open import check_valkey

        check_valkey(settings.warm)
