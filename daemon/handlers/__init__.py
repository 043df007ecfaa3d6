"""Handlers: how items reach their destinations.

Each is imported when a queue wants it: the children of a python handler come through here as well,
and none of them needs an HTTP client to start.
"""

from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from actors.handling import Handler
    from actors.queue_settings import QueueSettings


def open_handler(queue: str, settings: "QueueSettings") -> "Handler | None":
    """The handler of a queue; None if its items wait to be pulled.

    Raises ConfigError, with the queue and the key, if there is no such function or program.
    """
    from actors import handler_settings as chosen

    match settings.handler:
        case chosen.NullHandler():
            from daemon.handlers.null import NullDelivery

            return NullDelivery()
        case chosen.FileHandler(format="parquet") as handler:
            from daemon.handlers.parquet import ParquetDelivery

            return ParquetDelivery(queue, handler)
        case chosen.FileHandler() as handler:
            from daemon.handlers.file import FileDelivery

            return FileDelivery(queue, handler)
        case chosen.PullHandler():
            return None
        case chosen.HttpHandler() as handler:
            from daemon.handlers.http import HttpDelivery

            return HttpDelivery(queue, handler)
        case chosen.PythonHandler() as handler:
            from daemon.handlers.python import PythonDelivery

            return PythonDelivery(queue, handler)
        case chosen.CommandHandler() as handler:
            from daemon.handlers.command import CommandDelivery

            return CommandDelivery(queue, handler)
        case _:
            assert_never(settings.handler)
