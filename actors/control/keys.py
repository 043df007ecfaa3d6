"""Operations on keys (docs/protocol.md, "Keyed queues"): `key.show` and `key.drop`.

It owns nothing: the keys belong to the cold store. Each operation is one step there.
"""

from collections.abc import Mapping
from typing import Any

from actors.control.fields import Fields, Operation
from actors.model.keys import Holder
from actors.model.refusals import bad_request
from actors.ports.tiers import ColdQueue
from forebay.errors import Refused
from forebay.limits import KEY_BYTES_MAX


class KeyControl:
    def __init__(self, cold: ColdQueue) -> None:
        self._cold = cold

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"key.show": self._show, "key.drop": self._drop}

    async def _show(self, fields: Fields) -> dict[str, Any]:
        queue, key = read(fields)
        return holder_object(found(await self._cold.key(queue, key)))

    async def _drop(self, fields: Fields) -> dict[str, Any]:
        queue, key = read(fields)
        holder = found(await self._cold.drop_key(queue, key))
        if holder.phase == "started":
            raise bad_request(f"{holder.item} has started: it cannot be taken back")
        if holder.phase == "dead":
            raise bad_request(
                f"{holder.item} is a dead letter: retry or remove it, and its key is free"
            )
        return holder_object(holder)


def read(fields: Fields) -> tuple[str, bytes]:
    queue, text, data = fields.text("queue"), fields.text_or_none("key"), fields.bytes("key_b64")
    fields.end()
    if (text is None) == (data is None):
        raise bad_request("give key or key_b64")
    key = data if data is not None else (text or "").encode()
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise bad_request(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    return queue, key


def found(holder: Holder | None) -> Holder:
    if holder is None:
        raise Refused("NOT_FOUND", "no item has this key")
    return holder


def holder_object(holder: Holder) -> dict[str, Any]:
    return {
        "id": str(holder.item),
        "state": holder.phase,
        "due_ms": holder.due_ms,
        "attempt": holder.attempt,
        "until_ms": holder.until_ms,
    }
