"""Handlers: how items reach their destinations.

Each is imported when a queue uses it: the child processes of a python handler import this package
too, and should start without loading an HTTP client.
"""

from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from actors.config.queue import QueueSettings
    from actors.ports.handler import Handler


def open_handler(queue: str, settings: "QueueSettings") -> "Handler | None":
    """The handler of a queue; None if its items wait to be pulled.

    Raises ConfigError, with the queue and the key, if its function or program does not exist, or a
    secret that it refers to.
    """
    from actors.config import handlers as chosen
    from actors.config import http
    from daemon.config.secrets import read_secrets

    read_secrets(settings.handler, f"queues.{queue}.handler")

    match settings.handler:
        case chosen.NullHandler():
            from daemon.handlers.null import NullDelivery

            return NullDelivery()
        case chosen.FileHandler(format="parquet") as handler:
            from daemon.handlers.file.parquet import ParquetDelivery

            return ParquetDelivery(queue, handler)
        case chosen.FileHandler() as handler:
            from daemon.handlers.file.handler import FileDelivery

            return FileDelivery(queue, handler)
        case chosen.PullHandler():
            return None
        case http.HttpHandler() as handler:
            from daemon.handlers.http.handler import HttpDelivery

            return HttpDelivery(queue, handler)
        case chosen.PythonHandler() as handler:
            from daemon.handlers.python.handler import PythonDelivery

            return PythonDelivery(queue, handler)
        case chosen.CommandHandler() as handler:
            from daemon.handlers.command.handler import CommandDelivery

            return CommandDelivery(queue, handler)
        case _:
            assert_never(settings.handler)


def usable_handler(queue: str, settings: "QueueSettings") -> "Handler | None":
    """The same for a queue that is made or changed at run time: raises HandlerUnusable."""
    from actors.model.outcomes import HandlerUnusable
    from daemon.errors import CannotStart

    try:
        return open_handler(queue, settings)
    except CannotStart as problem:
        raise HandlerUnusable(str(problem)) from problem
