"""The Queue Metrics page: the page itself, its other views, and the files that they load.

Pages and files need no token, because a browser that follows a link has none to send. If no tokens
are configured, the page contains the current table; otherwise it is empty, asks for a token once,
and fetches everything through the API like any other client.
"""

import socket
from functools import partial

import trio
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from actors.metrics.metrics import Metrics
from actors.metrics.snapshot import FlowState, Snapshot
from actors.model.clock import wall_ms
from daemon.http.access import Access
from daemon.http.action_classes import action_class, flow_type
from daemon.http.doors import Doors
from daemon.http.page.views import Row, Views, load_assets
from daemon.http.problems import Problem

FOR_GOOD = "public, max-age=31536000, immutable"


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/queue-metrics", include_in_schema=False)
    assets = load_assets()
    views = Views(socket.gethostname(), f"/queue-metrics/static/{assets.digest}")

    @router.get("")
    async def queue_metrics(request: Request) -> HTMLResponse:
        access: Access = request.app.state.access
        snapshot = await doors.metrics.snapshot() if access.is_open else None
        # In a thread: with thousands of flows it takes a while.
        render = partial(first_view, views, snapshot, doors.metrics)
        return HTMLResponse(await trio.to_thread.run_sync(render))

    @router.get("/schedules")
    async def schedules() -> HTMLResponse:
        return HTMLResponse(views.schedules())

    @router.get("/triggers")
    async def triggers() -> HTMLResponse:
        return HTMLResponse(views.triggers())

    @router.get("/events")
    async def events() -> HTMLResponse:
        return HTMLResponse(views.events())

    @router.get("/items/{item_id}")
    async def item(item_id: str) -> HTMLResponse:
        return HTMLResponse(views.item(item_id))

    @router.get("/static/{digest}/{name}")
    async def static(digest: str, name: str) -> Response:
        asset = assets.by_name.get(name)
        if asset is None or digest != assets.digest:
            raise Problem(404, f"the page has no file {name}, or not of this version")
        headers = {"Cache-Control": FOR_GOOD}
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    return router


def first_view(views: Views, snapshot: Snapshot | None, metrics: Metrics) -> str:
    if snapshot is None:
        return views.queue_metrics(None, wall_ms())
    rows = [row_of(flow, snapshot.at_ms, metrics) for flow in snapshot.flows]
    return views.queue_metrics([row for row in rows if row.total], snapshot.at_ms)


def row_of(flow: FlowState, now_ms: int, metrics: Metrics) -> Row:
    settings = metrics.catalogue.settings_of(flow.queue)
    return Row(
        queue=flow.queue,
        flow=flow.flow,
        type=flow_type(settings, is_stream=metrics.is_stream(flow.queue)),
        action=flow.action,
        action_class=action_class(settings),
        warm=flow.warm,
        cold=flow.cold,
        oldest_age_ms=None if flow.oldest_ms is None else max(0, now_ms - flow.oldest_ms),
    )
