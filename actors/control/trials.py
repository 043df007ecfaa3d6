"""Tries a queue's handler on one item: shows the request, and sends it if asked."""

import base64
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from actors.config.queue import QueueSettings
from actors.control.actors import Actors
from actors.control.operation import (
    About,
    Flow,
    Http,
    Operation,
    QueueName,
    View,
    read_payload,
)
from actors.model.outcomes import HandlerUnusable
from actors.model.refusals import bad_request, not_found
from actors.model.slices import InJournal, LentRun, Slice
from actors.ports.handler import Handler, Triable, Trial, TriedRequest
from actors.ports.tiers import DeadFilter
from actors.workers.dispatch import OpenHandler
from forebay.errors import Refused
from forebay.ids import pack_item_id, parse_item_id
from forebay.run import encode_run, read_head


class TriedAnswer(View):
    """A request as it goes out, with secrets masked, and its answer if it was sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None = None
    body_b64: str | None = None
    status: int | None = Field(description="Of the answer, if the request was sent.")
    answer: str | None = Field(description="The beginning of the answer's text.")


class TrialView(View):
    requests: list[TriedAnswer]
    outcome: Literal["ready", "delivered", "refused", "retry"]
    error: str | None


class TryQueue(Operation):
    """Show the request that a queue's handler makes of an item, and send it if asked.

    Nothing is stored or settled. Only http handlers can be tried.
    """

    about: ClassVar = About(
        "queues.try",
        role="admin",
        example={"queue": "crm", "payload": '{"email": "ann@example.org"}'},
        http=Http("POST", "/api/v2/queues/{queue}/try", errors=(404, 409)),
        has_command=False,
    )

    queue: QueueName
    payload: Annotated[str | None, Field(description="The item's payload.")] = None
    payload_b64: Annotated[
        str | None, Field(description="For a payload that is not text: in base64.")
    ] = None
    key: str | None = None
    flow: Flow = None
    action: str | None = None
    from_dead: Annotated[
        str | None, Field(description="The id of a dead letter, instead of a payload.")
    ] = None
    send: Annotated[bool, Field(description="Send the request; otherwise it is only shown.")] = (
        False
    )

    async def perform(self, actors: Actors) -> TrialView:
        settings = actors.catalogue.queue(self.queue)
        if settings is None:
            raise not_found(f"queue {self.queue}")
        payload = read_payload(self.payload, self.payload_b64)
        key, flow, action = self.key, self.flow, self.action
        if self.from_dead is not None:
            which = DeadFilter(ids=(self.from_dead,))
            page = await actors.tiers.cold.dead_letters.find(which, 1, payloads=True)
            if not page.letters:
                raise not_found(f"dead letter {self.from_dead}")
            letter = page.letters[0]
            payload, key = letter.payload, letter.key
            flow, action = letter.flow, letter.action
        if payload is None:
            raise bad_request("give payload, payload_b64 or from_dead")
        item = trial_item(
            self.queue, payload, key=key, flow=flow, action=action, item_id=self.from_dead
        )
        opener = actors.workers.open_handler
        trial = await try_out(self.queue, settings, item, opener, self.send)
        return TrialView.model_validate(trial_object(trial))


async def try_out(
    queue: str, settings: QueueSettings, item: Slice, open_handler: OpenHandler, is_sent: bool
) -> Trial:
    """Raises Refused if the queue's handler cannot be tried."""
    try:
        handler: Handler | None = open_handler(queue, settings)
    except HandlerUnusable as problem:
        raise Refused(
            "CONFLICT", f"the handler of {queue} cannot be opened: {problem}"
        ) from problem
    if handler is None:
        text = "its items wait for consumers, or the name is wrong"
        raise Refused("CONFLICT", f"{queue} has no handler to try: {text}")
    try:
        if not isinstance(handler, Triable):
            kind = settings.handler.type
            text = f"{queue} has a {kind} handler: only http handlers can be tried"
            raise Refused("CONFLICT", text)
        return await handler.try_out([item], is_sent=is_sent)
    finally:
        await handler.aclose()


def trial_item(
    queue: str,
    payload: bytes,
    *,
    key: str | None = None,
    flow: str | None = None,
    action: str | None = None,
    item_id: str | None = None,
) -> Slice:
    """An item that no store holds, with a new id unless one is given."""
    data = encode_run(
        [payload],
        queue=queue,
        keys=None if key is None else [key.encode()],
        item_ids=None if item_id is None else [pack_item_id(*parse_item_id(item_id))],
        flow=flow or "",
        action=action or "",
    )
    return Slice(LentRun(read_head(data), data, InJournal(token=0, position=0)), 1)


def trial_object(trial: Trial) -> dict[str, Any]:
    (item,) = trial.items
    return {
        "requests": [_request_object(one) for one in trial.requests],
        "outcome": item.outcome,
        "error": item.error,
    }


def _request_object(request: TriedRequest) -> dict[str, Any]:
    try:
        body = {"body": request.body.decode()}
    except UnicodeDecodeError:
        body = {"body_b64": base64.b64encode(request.body).decode()}
    return {
        "method": request.method,
        "url": request.url,
        "headers": request.headers,
        **body,
        "status": request.status,
        "answer": request.answer,
    }


OPERATIONS: Final = (TryQueue,)
