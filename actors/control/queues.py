"""Operations on queues, their dead letters and the breakers of their destinations.

Each operation checks its fields, does one step and returns the resulting state. It owns nothing:
dead letters belong to the cold store, queues and pauses to the catalogue, breakers to their actor.
"""

import math
from collections.abc import Mapping
from typing import Any

import trio

from actors.breaker.breaker import Breakers
from actors.config.catalogue import UNSEEN, Catalogue, QueueCounts
from actors.control.fields import (
    LIMIT_MAX,
    STOP_AT,
    Fields,
    Operation,
    cursor_is_known,
    cursor_text,
    letter_object,
    read_filter,
)
from actors.metrics.books import Books
from actors.model.refusals import bad_request, not_found, spent_job
from actors.tiers.tiers import Tiers
from forebay.errors import Refused


class QueueControl:
    def __init__(
        self, catalogue: Catalogue, tiers: Tiers, breakers: Breakers, books: Books
    ) -> None:
        self._catalogue = catalogue
        self._dead = tiers.cold.dead_letters
        self._breakers = breakers
        self._books = books
        self._tiers = tiers
        self.operations: Mapping[str, Operation] = {
            "dead.find": self._dead_find,
            "dead.count": self._dead_count,
            "dead.retry": self._dead_retry,
            "dead.remove": self._dead_remove,
            "dead.edit": self._dead_edit,
            "queue.show": self._show,
            "queue.pause": self._pause,
            "queue.resume": self._resume,
            "queues.list": self._list,
            "queues.create": self._create,
            "queues.change": self._change,
            "queues.delete": self._delete,
            "breakers.list": self._breakers_list,
            "breakers.force": self._breakers_force,
            "config.priorities": self._priorities,
        }

    # Dead letters.

    async def _dead_find(self, fields: Fields) -> dict[str, Any]:
        which, cursor = read_filter(fields), fields.bytes("cursor")
        limit = fields.number("limit", 100, 1, LIMIT_MAX)
        payloads = fields.flag("payloads")
        fields.end()
        with cursor_is_known():
            page = await self._dead.find(which, limit, cursor, payloads=payloads)
        letters = [letter_object(letter) for letter in page.letters]
        return {"letters": letters, "cursor": cursor_text(page.cursor)}

    async def _dead_count(self, fields: Fields) -> dict[str, Any]:
        which, stop_at = read_filter(fields), fields.number("stop_at", STOP_AT, 1)
        fields.end()
        return {"count": await self._dead.count(which, stop_at)}

    async def _dead_retry(self, fields: Fields) -> dict[str, Any]:
        which, cursor = read_filter(fields), fields.bytes("cursor")
        limit = fields.number("limit", LIMIT_MAX, 1, LIMIT_MAX)
        fields.end()
        with cursor_is_known():
            change = await self._dead.retry(which, limit, cursor)
        if change.spent and which.ids and not change.done:
            raise spent_job(which.ids[0])
        for queue in change.queues:
            self._tiers.wake(queue)
        return {"done": change.done, "cursor": cursor_text(change.cursor)}

    async def _dead_remove(self, fields: Fields) -> dict[str, Any]:
        which, cursor = read_filter(fields), fields.bytes("cursor")
        limit = fields.number("limit", LIMIT_MAX, 1, LIMIT_MAX)
        fields.end()
        with cursor_is_known():
            change = await self._dead.remove(which, limit, cursor)
        return {"done": change.done, "cursor": cursor_text(change.cursor)}

    async def _dead_edit(self, fields: Fields) -> dict[str, Any]:
        item_id, text = fields.text("id"), fields.text_or_none("payload")
        payload = fields.bytes("payload_b64")
        fields.end()
        if text is not None and payload is None:
            payload = text.encode()
        elif text is not None or payload is None:
            raise bad_request("give payload or payload_b64")
        if not await self._dead.edit(item_id, payload):
            raise Refused("NOT_FOUND", f"there is no dead letter {item_id}")
        return {}

    # Queues.

    async def _show(self, fields: Fields) -> dict[str, Any]:
        queue = fields.text("queue")
        fields.end()
        await self.check_exists(queue)
        return await self._queue_object(queue)

    async def _pause(self, fields: Fields) -> dict[str, Any]:
        queue, flow = fields.text("queue"), fields.text_or_none("flow")
        fields.end()
        await self.check_exists(queue)
        await self._catalogue.pause(queue, flow)
        return await self._queue_object(queue)

    async def _resume(self, fields: Fields) -> dict[str, Any]:
        queue, flow = fields.text("queue"), fields.text_or_none("flow")
        fields.end()
        await self.check_exists(queue)
        if not self._catalogue.settings_of(queue).is_active:
            text = f"{queue} stays as it is: its setting is_active is false; set it to true first"
            raise Refused("CONFLICT", text)
        await self._catalogue.resume(queue, flow)
        self._tiers.wake(queue)
        return await self._queue_object(queue)

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        seen = await self._books.seen()
        return {
            "creates_queues": self._catalogue.creates_queues,
            "queues": [
                self._catalogue.describe(name) | {"held": entry.held}
                for name in sorted({*self._catalogue.names(), *seen})
                if self._catalogue.exists(name, entry := seen.get(name, UNSEEN))
            ],
        }

    async def _create(self, fields: Fields) -> dict[str, Any]:
        queue, settings = fields.text("queue"), fields.settings()
        fields.end()
        await self._catalogue.create(queue, settings)
        return await self._queue_object(queue)

    async def _change(self, fields: Fields) -> dict[str, Any]:
        queue, settings = fields.text("queue"), fields.settings()
        fields.end()
        await self._catalogue.change(queue, settings)
        return await self._queue_object(queue)

    async def _delete(self, fields: Fields) -> dict[str, Any]:
        queue = fields.text("queue")
        fields.end()
        entry = await self.check_exists(queue)
        if entry.held or entry.dead:
            raise bad_request(f"{queue} is not empty: held {entry.held}, dead {entry.dead}")
        await self._catalogue.delete(queue, entry.accepted)
        return {}

    async def check_exists(self, queue: str) -> QueueCounts:
        """The counts of a queue in the books; raises NOT_FOUND if the queue does not exist."""
        entry = (await self._books.seen()).get(queue, UNSEEN)
        if not self._catalogue.exists(queue, entry):
            raise not_found(f"queue {queue}")
        return entry

    async def _queue_object(self, queue: str) -> dict[str, Any]:
        held = (await self._books.seen()).get(queue, UNSEEN).held
        return self._catalogue.describe(queue) | {"held": held}

    # Breakers.

    async def _breakers_list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        return {"breakers": [self._breaker_object(name) for name in self._breakers.figures()]}

    async def _breakers_force(self, fields: Fields) -> dict[str, Any]:
        destination, state = fields.text("destination"), fields.text("state")
        fields.end()
        if destination not in self._breakers.figures():
            raise Refused("NOT_FOUND", f"no queue delivers to {destination}")
        if state not in ("open", "closed", "auto"):
            raise bad_request("state must be open, closed or auto")
        # Auto takes back an operator's decision, but nothing that a breaker has found out.
        if state != "auto" or self._breaker_object(destination)["forced"]:
            self._breakers.force(destination, "open" if state == "open" else "closed")
        return self._breaker_object(destination)

    def _breaker_object(self, destination: str) -> dict[str, Any]:
        state = self._breakers.state(destination)
        is_forced = state.phase == "open" and math.isinf(state.until)
        until_ms = None
        if state.phase == "open" and not is_forced:
            until_ms = self._tiers.now_ms() + round((state.until - trio.current_time()) * 1000)
        return {
            "destination": destination,
            "state": state.phase,
            "forced": is_forced,
            "failures": state.failures,
            "open_until_ms": until_ms,
            "last_error": state.last_error,
        }

    # The configuration.

    async def _priorities(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        return {"priorities": dict(self._catalogue.priorities)}
