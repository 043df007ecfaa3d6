"""Operations on dead letters: find, count, retry, remove, edit. They belong to the cold store."""

from collections.abc import Mapping
from typing import Any

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
from actors.model.refusals import bad_request, spent_job
from actors.tiers.tiers import Tiers
from forebay.errors import Refused


class Letters:
    def __init__(self, tiers: Tiers) -> None:
        self._dead = tiers.cold.dead_letters
        self._tiers = tiers
        self.operations: Mapping[str, Operation] = {
            "dead.find": self._dead_find,
            "dead.count": self._dead_count,
            "dead.retry": self._dead_retry,
            "dead.remove": self._dead_remove,
            "dead.edit": self._dead_edit,
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
