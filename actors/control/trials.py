"""Tries a queue's handler on one item: shows the request, and sends it if asked."""

import base64
from collections.abc import Mapping
from typing import Any

from actors.config.catalogue import Catalogue
from actors.config.queue import QueueSettings
from actors.control.fields import Fields, Operation
from actors.model.outcomes import HandlerUnusable
from actors.model.refusals import bad_request, not_found
from actors.model.slices import InJournal, LentRun, Slice
from actors.ports.handler import Handler, Triable, Trial, TriedRequest
from actors.ports.tiers import DeadFilter, DeadLetters
from actors.workers.dispatch import OpenHandler
from forebay.errors import Refused
from forebay.ids import pack_item_id, parse_item_id
from forebay.run import encode_run, read_head


class TrialControl:
    def __init__(self, catalogue: Catalogue, dead: DeadLetters, open_handler: OpenHandler) -> None:
        self._catalogue = catalogue
        self._dead = dead
        self._open_handler = open_handler
        self.operations: Mapping[str, Operation] = {"queue.try": self._try}

    async def _try(self, fields: Fields) -> dict[str, Any]:
        queue, is_sent = fields.text("queue"), fields.flag("send")
        dead_id, text = fields.text_or_none("from_dead"), fields.text_or_none("payload")
        payload = text.encode() if text is not None else fields.bytes("payload_b64")
        key, flow = fields.text_or_none("key"), fields.text_or_none("flow")
        action = fields.text_or_none("action")
        fields.end()
        settings = self._catalogue.queue(queue)
        if settings is None:
            raise not_found(f"queue {queue}")
        if dead_id is not None:
            page = await self._dead.find(DeadFilter(ids=(dead_id,)), 1, payloads=True)
            if not page.letters:
                raise Refused("NOT_FOUND", f"the dead letter {dead_id} does not exist")
            letter = page.letters[0]
            payload, key = letter.payload, letter.key
            flow, action = letter.flow, letter.action
        if payload is None:
            raise bad_request("give payload, payload_b64 or from_dead")
        item = trial_item(queue, payload, key=key, flow=flow, action=action, item_id=dead_id)
        return trial_object(await try_out(queue, settings, item, self._open_handler, is_sent))


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
