"""Items: add single ones or a stream; lease, settle, find, change and delete them.

    POST /api/queue-items            by the queue's id     POST /api/queue-items/{id}/ack
    POST /api/queue-items/add        by its name           POST /api/queue-items/{id}/nack
    POST /api/v2/queues/{queue}/items  a stream of them    POST /api/queue-items/{id}/extend
    GET  /api/queue-items/next       a lease               GET, PUT, DELETE /api/queue-items/{id}
    GET  /api/queue-items            a search

One table (actors/model/states.py) says which state may follow which; other changes are answered
with 409 and the states that are allowed.
"""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response

from actors.control.items import WrongState
from actors.model.clock import wall_ms
from actors.model.correlation import CORRELATION_ID, TRACE_HEADER, correlation_of, trace_of
from actors.model.units import parse_duration
from daemon.http.access import Admin, Reader
from daemon.http.bulk import MEDIA_TYPE, Bulk
from daemon.http.doors import Doors
from daemon.http.models.items import (
    QUEUE_PATTERN,
    Added,
    Deleted,
    Item,
    ItemChange,
    ItemId,
    ItemPage,
    ItemQuery,
    NewItem,
    NewItemById,
    NewItemByName,
)
from daemon.http.problems import Problem, documented
from daemon.http.pushing import begin_push, check_queue, made, payload_of, run_id_of
from daemon.http.routes import leases
from daemon.http.strict import StrictRoute
from forebay.errors import Refused
from forebay.limits import QUEUE_BYTES_MAX

ADD_PROBLEMS = documented(404, 409, 422, 507)
LINES_EXAMPLE = '{"payload": "one", "reference": "a"}\n{"payload": {"n": 2}, "priority": "high"}\n'
STREAM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One item per line, like `NewItem` without its queue",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "example": LINES_EXAMPLE}},
    }
}
STREAM_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One line per item: its number and id, or a problem; then a summary",
        "content": {
            MEDIA_TYPE: {
                "schema": {"type": "string"},
                "example": '{"line":1,"id":"…-0","outcome":"STORED"}\n'
                '{"lines":1,"stored":1,"refused":0}\n',
            }
        },
    }
}


Trace = Annotated[
    str | None, Header(max_length=200, description="Of the request: goes along with the item")
]
Correlation = Annotated[
    str | None, Header(max_length=200, description="Goes along as `correlation_id`")
]


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(tags=["items"], route_class=StrictRoute)
    _adding(router, doors)
    # Before the routes with `{id}`, which would match `next`.
    leases.add_routes(router, doors)
    _finding(router, doors)
    _changing(router, doors)
    return router


# Adding.


def _adding(router: APIRouter, doors: Doors) -> None:
    @router.post(
        "/api/queue-items", status_code=201, operation_id="addItemById", responses=ADD_PROBLEMS
    )
    async def add_by_id(
        new: NewItemById, _: Admin, traceparent: Trace = None, x_correlation_id: Correlation = None
    ) -> Added:
        """Adds an item to a queue by its id. It is on disk when this is answered."""
        return await add(doors, new.queue_id, correlate(new, traceparent, x_correlation_id))

    @router.post(
        "/api/queue-items/add", status_code=201, operation_id="addItem", responses=ADD_PROBLEMS
    )
    async def add_by_name(
        new: NewItemByName,
        _: Admin,
        traceparent: Trace = None,
        x_correlation_id: Correlation = None,
    ) -> Added:
        """Adds an item to a queue by its name. It is on disk when this is answered."""
        return await add(doors, new.queue, correlate(new, traceparent, x_correlation_id))

    @router.post(
        "/api/v2/queues/{queue}/items",
        operation_id="addItems",
        response_class=Bulk,
        status_code=200,
        responses=STREAM_ANSWER | documented(404),
        openapi_extra=STREAM_BODY,
    )
    async def add_many(
        queue: Annotated[str, Path(max_length=QUEUE_BYTES_MAX, pattern=QUEUE_PATTERN)], _: Admin
    ) -> Response:
        """Adds a stream of items of any length, and answers each when it is stored."""
        check_queue(doors, queue)
        return Bulk(doors, queue)


def correlate(new: NewItem, traceparent: str | None, correlation_id: str | None) -> NewItem:
    """The item with the request's correlation, unless it has its own."""
    if correlation_id is not None and correlation_of(new.headers) is None:
        new.headers[CORRELATION_ID] = correlation_id
    if traceparent is not None and trace_of(new.headers) is None:
        new.headers[TRACE_HEADER] = traceparent
    return new


async def add(doors: Doors, queue: str, new: NewItem) -> Added:
    item = made(new, doors.catalogue.priorities, wall_ms())
    push = await begin_push(doors, queue, [item], run_id_of(new))
    (outcome,) = await push.wait()
    item_id: str | None = push.ids[0]
    if outcome in ("CONFLICT", "IGNORED"):
        item_id = await holder_of(doors, queue, item.key)
    if outcome == "CONFLICT":
        text = f"reference {new.reference} is taken in {queue}"
        raise Problem(409, text, "duplicate-reference", extensions={"holder": item_id})
    return Added.model_validate({"id": item_id, "queue": queue, "outcome": outcome})


async def holder_of(doors: Doors, queue: str, key: bytes) -> str | None:
    """The item that has a reference; None if it has just ended."""
    fields = {"queue": queue, "key_b64": b64encode(key).decode()}
    try:
        return str((await doors.perform("keys.show", fields))["id"])
    except Refused:
        return None


# Finding.


def _finding(router: APIRouter, doors: Doors) -> None:
    @router.get("/api/queue-items", operation_id="findItems", responses=documented(422))
    async def find(which: Annotated[ItemQuery, Query()], _: Reader) -> ItemPage:
        """Searches all items: waiting, running, dead, and in history. Each request reads a bounded
        number of items; continue with `cursor` while there is one."""
        fields = {"which": filter_of(which), "limit": which.limit, "cursor": which.cursor}
        return ItemPage.model_validate(await doors.perform("items.find", fields))

    @router.get(
        "/api/queue-items/{item_id}", operation_id="showItem", responses=documented(404, 422)
    )
    async def show(item_id: ItemId, who: Reader) -> Item:
        """Shows where an item is, and its timeline; its payload if the client may see it."""
        fields = {"id": item_id, "payload": who.sees_payloads}
        return Item.model_validate(await doors.perform("items.show", fields))


def filter_of(query: ItemQuery) -> dict[str, Any]:
    if query.key is not None and query.reference not in (None, query.key):
        raise Problem(422, "key and reference are the same thing, and differ", "invalid")
    now_ms = wall_ms()
    fields = {
        "queue": query.queue,
        "state": query.state,
        "key": query.key or query.reference,
        "correlation_id": query.correlation_id,
        "traceparent": query.traceparent,
        "failure_reason": query.failure_reason,
        "error": query.error,
        "before_ms": ago(query.older_than, "older_than", now_ms),
        "after_ms": ago(query.newer_than, "newer_than", now_ms),
    }
    return {name: value for name, value in fields.items() if value is not None}


def ago(text: str | None, name: str, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        return max(0, now_ms - round(parse_duration(text) * 1000))
    except (ValueError, ArithmeticError):
        raise Problem(422, f"{name} is not a duration: write 90s, 15m or 7d", "invalid") from None


# Changing.


def _changing(router: APIRouter, doors: Doors) -> None:
    @router.put(
        "/api/queue-items/{item_id}",
        operation_id="changeItem",
        responses=documented(404, 409, 413, 422),
    )
    async def change(item_id: ItemId, body: ItemChange, _: Admin) -> Item | Deleted:
        """Changes a waiting item or a dead letter. If the table of states does not allow a change
        of state, 409 names the states that are allowed."""
        fields: dict[str, Any] = body.model_dump(exclude={"payload", "payload_b64"})
        payload = payload_of(body.payload, body.payload_b64)
        if payload is not None:
            fields["payload_b64"] = b64encode(payload).decode()
        fields = {name: value for name, value in fields.items() if value is not None}
        with states_named():
            found = await doors.perform("items.change", {"id": item_id, **fields})
        if found["state"] == "DELETED":
            return Deleted.model_validate(found)
        return Item.model_validate(found)

    @router.delete(
        "/api/queue-items/{item_id}",
        operation_id="deleteItem",
        responses=documented(404, 409, 422),
    )
    async def delete(item_id: ItemId, _: Admin) -> Deleted:
        """Deletes a waiting item or a dead letter. It counts as deleted, and stays in the queue's
        history if there is one."""
        with states_named():
            return Deleted.model_validate(await doors.perform("items.delete", {"id": item_id}))


@contextmanager
def states_named() -> Iterator[None]:
    """Adds the allowed states to the answer if a change of state is refused."""
    try:
        yield
    except WrongState as problem:
        allowed = [state.value for state in problem.allowed]
        more = {"code": problem.code, "state": problem.state.value, "allowed": allowed}
        raise Problem(409, problem.text, "wrong-state", extensions=more) from problem
