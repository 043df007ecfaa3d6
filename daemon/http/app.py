"""Puts the application together: all routes, and the guard around them.

A routes module has `routes(doors)`; it is listed here and nowhere else. /docs is off: it would load
scripts from other servers.
"""

from importlib.metadata import version
from typing import Final

from fastapi import FastAPI

from daemon.http import openapi, operations, problems
from daemon.http.access import Access
from daemon.http.doors import Doors
from daemon.http.guard import App, Guard
from daemon.http.routes import (
    configuration,
    dead,
    events,
    health,
    items,
    page,
    prometheus,
    receipts,
    schedules,
    spool,
    triggers,
)
from daemon.http.routes import metrics as metrics_v2

ROUTES: Final = (
    operations.routes,
    items.routes,
    dead.routes,
    receipts.routes,
    schedules.routes,
    triggers.routes,
    spool.routes,
    configuration.routes,
    events.routes,
    health.routes,
    metrics_v2.routes,
    page.routes,
    prometheus.routes,
)


def make_api(doors: Doors, access: Access) -> FastAPI:
    api = FastAPI(
        title="forebay",
        summary="A durable work queue in front of slow destinations.",
        version=version("forebayd"),
        docs_url=None,
        redoc_url=None,
    )
    api.state.access = access
    api.state.doors = doors
    for routes in ROUTES:
        api.include_router(routes(doors))
    problems.install(api)
    api.openapi = lambda: openapi.describe(api)  # type: ignore[method-assign]
    return api


def make_app(doors: Doors, access: Access) -> App:
    """The ASGI application that the server calls."""
    return Guard(make_api(doors, access), doors.settings.http, access, doors.large_bodies)
