"""SIGHUP: reloads the configuration of queues, handlers and limits; connections stay open.

A reload applies completely or not at all: if the file is invalid, a secret cannot be read or a
handler cannot be opened, nothing changes. Handlers and webhooks with a secret whose value is
another one by now are replaced as if their settings had changed. The log names changed settings
that need a restart.
"""

from collections.abc import Callable
from typing import Final

import structlog

from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.cron.cron import Cron
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.outcomes import HandlerUnusable
from actors.observers.observers import Observers
from actors.workers.workers import Workers
from daemon.config.secrets import read_secrets
from daemon.errors import CannotStart
from daemon.handlers import open_handler
from daemon.notify.ways import check_webhooks
from daemon.process.systemd import notify, reloading

log = structlog.get_logger()

RELOADED: Final = frozenset(
    {
        "queues",
        "defaults",
        "auto_create_queues",
        "presets_dir",
        "global_send_limit",
        "priorities",
        "schedules",
        "triggers",
        "notifications",
    }
)
Load = Callable[[], Settings]


class Reload:
    def __init__(
        self,
        settings: Settings,
        load: Load | None,
        catalogue: Catalogue,
        workers: Workers,
        cron: Cron,
        observers: Observers,
    ) -> None:
        self._settings = settings
        self._load = load
        self._catalogue = catalogue
        self._workers = workers
        self._cron = cron
        self._observers = observers
        self._others: list[Callable[[], None]] = []

    def also(self, other: Callable[[], None]) -> None:
        """`other` is called at every SIGHUP, even if the configuration is not reloaded."""
        self._others.append(other)

    async def __call__(self) -> None:
        notify(*reloading())
        try:
            await self._reload()
            for other in self._others:
                other()
        except Exception as problem:
            INTERNAL_ERRORS.note(problem, "SIGHUP")
        notify("READY=1")

    async def _reload(self) -> None:
        if self._load is None:
            log.warning("daemon.cannot_reload", hint="it was started without a configuration")
            return
        try:
            settings = self._load()
            read_secrets(settings)
            await check_handlers(settings)
            check_webhooks(settings.notifications)
            await self._catalogue.reload(settings)
        except (CannotStart, HandlerUnusable, OSError) as problem:
            log.error("daemon.not_reloaded", error=str(problem), in_force="as before")
            return
        self._workers.send_limit.change(settings.global_send_limit)
        self._observers.notifier.reload(settings.notifications)
        await self._cron.reload(settings)
        log.info("daemon.reloaded", queues=len(settings.queues))
        waiting = restart_needed(self._settings, settings)
        if waiting:
            log.warning("daemon.restart_needed", keys=waiting)


def restart_needed(before: Settings, after: Settings) -> list[str]:
    """The changed top-level keys that are read only at the start."""
    return [
        name
        for name in type(before).model_fields
        if name not in RELOADED and getattr(before, name) != getattr(after, name)
    ]


async def check_handlers(settings: Settings) -> None:
    """Opens every configured handler once, so that its problems are reported now."""
    for queue, queue_settings in {"defaults": settings.defaults, **settings.queues}.items():
        handler = open_handler(queue, queue_settings)
        if handler is not None:
            await handler.aclose()
