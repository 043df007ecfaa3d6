"""Leases over HTTP: lease the next item of a queue, settle it, extend the lease.

A lease outlives its connection. Its token also names the queue. The token is checked against the
item of the request; a stale one changes nothing. Requests that wait for an item are answered when
the daemon stops.
"""

from typing import Annotated

import trio
from fastapi import APIRouter, Query, Response

from actors.control.item_view import scheduled
from actors.model.clock import wall_ms
from actors.model.slices import lowest_bit
from actors.workers.pull import Holdings
from daemon.http.access import Admin
from daemon.http.doors import Doors
from daemon.http.models.items import (
    Ack,
    Extend,
    Extended,
    ItemId,
    Leased,
    Nack,
    NextQuery,
    Settled,
    payload_fields,
)
from daemon.http.problems import Problem, documented, draining
from forebay.ids import pack_item_id, parse_item_id
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What, as_text
from forebay.run import Run, read_head


def add_routes(router: APIRouter, doors: Doors) -> None:
    @router.get(
        "/api/queue-items/next",
        operation_id="nextItem",
        response_model=Leased,
        responses={204: {"description": "No item is due"}, **documented(404, 422)},
    )
    async def lease(wish: Annotated[NextQuery, Query()], _: Admin) -> Leased | Response:
        """Leases the next item that is due. No other client gets it until it is refused or its
        lease ends."""
        return await next_item(doors, wish) or Response(status_code=204)

    @router.post(
        "/api/queue-items/{item_id}/ack", operation_id="ackItem", responses=documented(409, 422)
    )
    async def ack(item_id: ItemId, body: Ack, _: Admin) -> Settled:
        """Acknowledges an item: it is delivered."""
        await settle(doors, item_id, body.token, Part(What.DELIVERED, 0, as_text(body.result)))
        return Settled(id=item_id, outcome="delivered")

    @router.post(
        "/api/queue-items/{item_id}/nack", operation_id="nackItem", responses=documented(409, 422)
    )
    async def nack(item_id: ItemId, body: Nack, _: Admin) -> Settled:
        """Refuses an item: it is retried, or becomes a dead letter."""
        delay_ms = None if body.delay_s is None else round(body.delay_s * 1000)
        reason, is_permanent = body.failure_reason, body.permanent
        if is_permanent is None:
            is_permanent = reason == "business"
        failed = Part(What.FAILED, 0, as_text(body.error), delay_ms, is_permanent, reason)
        await settle(doors, item_id, body.token, failed)
        return Settled(id=item_id, outcome="failed")

    @router.post(
        "/api/queue-items/{item_id}/extend",
        operation_id="extendItem",
        responses=documented(404, 409, 422),
    )
    async def extend(item_id: ItemId, body: Extend, _: Admin) -> Extended:
        """Extends a lease: it lasts this long from now."""
        queue, token = held(doors, item_id, body.token)
        lease_ms = max(1, round(body.lease_s * 1000))
        if not all(await doors.workers.pull.extend(queue, [token], lease_ms)):
            raise lease_lost()
        return Extended(id=item_id, until_ms=wall_ms() + lease_ms)


async def next_item(doors: Doors, query: NextQuery) -> Leased | None:
    if doors.is_draining:
        raise draining()
    holdings = Holdings(query.consumer)
    wish = LeaseWish(
        query.queue,
        items=1,
        lease_ms=round((query.lease_s or 0) * 1000),
        wait_ms=round(query.wait_s * 1000),
        consumer=query.consumer,
        keep=True,
        times=True,
    )
    refused: Exception | None = None
    leased: list[LeasedRun] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_with, doors.stopping, holdings)
        try:
            leased = await doors.workers.pull.lease(wish, holdings)
        except Exception as problem:
            # A nursery would wrap it in an exception group.
            refused = problem
        nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused
    if not leased:
        return None
    (one,) = leased
    run = Run(read_head(one.run), one.run)
    index = lowest_bit(one.bits) if one.bits else 0
    head, key = run.head, run.keys(index, index + 1)[0]
    scheduled_ms, initially_ms = scheduled(head, one.due_ms or 0)
    return Leased(
        id=run.item_ids(index, index + 1)[0],
        queue=head.queue,
        key=key.decode(errors="replace") or None,
        headers=head.headers(),
        flow=head.flow,
        action=head.action,
        priority=head.priority,
        attempt=one.attempt,
        scheduled_at_ms=scheduled_ms,
        scheduled_at_initially_ms=initially_ms,
        enqueued_ms=head.enqueued_ms,
        token=f"{one.token}.{head.queue}",
        until_ms=one.until_ms,
        consumer=query.consumer,
        **payload_fields(run.payloads(index, index + 1)[0]),
    )


async def end_with(stopping: trio.Event, holdings: Holdings) -> None:
    """When the daemon stops, ends the wait for items: there are none."""
    await stopping.wait()
    holdings.end_waits()


def held(doors: Doors, item_id: str, text: str) -> tuple[str, int]:
    """Queue and token of a lease on this item. Raises Problem 409 if it is not valid for it."""
    try:
        wanted = pack_item_id(*parse_item_id(item_id))
    except ValueError as problem:
        raise Problem(422, str(problem), "invalid") from problem
    number, _, queue = text.partition(".")
    leased = doors.workers.pull.held(queue, int(number))
    if leased is None:
        raise lease_lost()
    part = leased.slice
    index = lowest_bit(part.bits)
    (packed,) = Run(part.run.head, part.run.data).packed_ids(index, index + 1)
    if part.bits != 1 << index or packed != wanted:
        raise Problem(409, f"this lease is not on item {item_id}", "lease-lost")
    return queue, int(number)


async def settle(doors: Doors, item_id: str, token: str, part: Part) -> None:
    queue, number = held(doors, item_id, token)
    if not all(await doors.workers.pull.settle(queue, [LeaseReport(number, (part,))])):
        raise lease_lost()


def lease_lost() -> Problem:
    text = "the lease has run out, was settled before, or never was"
    return Problem(409, text, "lease-lost")
