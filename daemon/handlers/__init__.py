"""Handlers: how items reach their destinations."""

from typing import assert_never

from actors.ports import Handler
from actors.settings import FileHandler, NullHandler, PullHandler, QueueSettings
from daemon.handlers.file import FileDelivery
from daemon.handlers.null import NullDelivery


def open_handler(queue: str, settings: QueueSettings) -> Handler | None:
    """The handler of a queue; None if its items wait to be pulled."""
    match settings.handler:
        case NullHandler():
            return NullDelivery()
        case FileHandler() as chosen:
            return FileDelivery(chosen.path_for(queue), fsync=chosen.fsync)
        case PullHandler():
            return None
        case _:
            assert_never(settings.handler)
