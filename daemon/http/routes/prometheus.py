"""/metrics for Prometheus, in its own text format or in OpenMetrics, as the request asks.

A snapshot is rendered once in each format, in a thread, however many scrape within its second.
"""

from functools import partial
from typing import Final

from fastapi import APIRouter, Request, Response

from actors.metrics.snapshot import Snapshot
from actors.model.clock import wall_ms
from daemon.http.access import Reader
from daemon.http.doors import Doors
from daemon.http.prometheus.exposition import Exposition, negotiate
from daemon.http.prometheus.families import Kept, families
from daemon.http.prometheus.label_values import Labels
from daemon.http.prometheus.rendered import Rendered

EXAMPLE: Final = """# HELP forebay_accepted_items_total Items that were made visible, ever.
# TYPE forebay_accepted_items_total counter
forebay_accepted_items_total{queue="crm"} 99240
"""


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(tags=["metrics"])
    exposition, labels, kept, rendered = Exposition(), Labels(), Kept(), Rendered()

    def render(snapshot: Snapshot, content_type: str) -> bytes:
        return exposition.render(families(snapshot, labels, wall_ms(), kept), content_type)

    @router.get(
        "/metrics",
        operation_id="scrapeMetrics",
        response_class=Response,
        responses={
            200: {
                "description": "Prometheus' text format, or OpenMetrics where that is accepted",
                "content": {
                    "text/plain": {"schema": {"type": "string"}, "example": EXAMPLE},
                    "application/openmetrics-text": {"schema": {"type": "string"}},
                },
            }
        },
    )
    async def scrape(request: Request, _: Reader) -> Response:
        """Everything that is counted and measured."""
        snapshot = await doors.metrics.snapshot()
        content_type = negotiate(request.headers.get("accept", ""))
        # One at a time, which is what `labels` and `kept` need: they remember what they have seen.
        made = partial(render, snapshot, content_type)
        body = await rendered.answer(snapshot, content_type, made)
        return Response(body, headers={"content-type": content_type})

    return router
