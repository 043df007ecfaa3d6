"""Unique keys: who has one, and taking it back. The keys belong to the cold store."""

import base64
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from actors.control.actors import Actors
from actors.control.operation import About, Operation, QueueName, View
from actors.model.keys import Holder
from actors.model.refusals import bad_request
from forebay.errors import Refused
from forebay.limits import KEY_BYTES_MAX

EXAMPLE: Final[dict[str, Any]] = {
    "id": "0198c0de-0a00-7000-8000-000000000001-0",
    "state": "waiting",
    "due_ms": 1755003600000,
    "attempt": 0,
    "until_ms": None,
}

Key = Annotated[str | None, Field(description="The key, as text.", examples=["customer-17"])]
KeyB64 = Annotated[str | None, Field(description="The key in base64, if it is not text.")]


class KeyHolder(View):
    """The item that has a key."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: str
    state: Literal["waiting", "started", "dead", "done", "unreadable"]
    due_ms: int = Field(description="When it is due; 0: at once.")
    attempt: int
    until_ms: int | None = Field(description="Of an item that is done: when its key is free.")


class ShowKey(Operation):
    """Show which item has a key, and how far it is."""

    about: ClassVar = About(
        "keys.show", role="read", example={"queue": "contacts", "key": "customer-17"}
    )

    queue: QueueName
    key: Key = None
    key_b64: KeyB64 = None

    async def perform(self, actors: Actors) -> KeyHolder:
        key = read_key(self.key, self.key_b64)
        return _view(await actors.tiers.cold.key(self.queue, key))


class RemoveKey(Operation):
    """Take an item back that waits under a key: the item is deleted, and its key is free.

    The key of an item that is done becomes free at once. An item that has started, or is a dead
    letter, keeps its key: the answer is BAD_REQUEST.
    """

    about: ClassVar = About(
        "keys.rm",
        role="push",
        example={"queue": "contacts", "key": "customer-17"},
        asks="Delete the item of {queue} that has this key?",
        done="{id} deleted",
    )

    queue: QueueName
    key: Key = None
    key_b64: KeyB64 = None

    async def perform(self, actors: Actors) -> KeyHolder:
        key = read_key(self.key, self.key_b64)
        found = _view(await actors.tiers.cold.drop_key(self.queue, key))
        if found.state == "started":
            raise bad_request(f"{found.id} has started: it cannot be taken back")
        if found.state == "dead":
            raise bad_request(
                f"{found.id} is a dead letter: retry or remove it, and its key is free"
            )
        return found


def read_key(text: str | None, encoded: str | None) -> bytes:
    if (text is None) == (encoded is None):
        raise bad_request("give key or key_b64")
    try:
        key = (text or "").encode() if encoded is None else base64.b64decode(encoded, validate=True)
    except ValueError:
        raise bad_request("key_b64 is not base64") from None
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise bad_request(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    return key


def _view(holder: Holder | None) -> KeyHolder:
    if holder is None:
        raise Refused("NOT_FOUND", "no item has this key")
    return KeyHolder(
        id=str(holder.item),
        state=holder.phase,
        due_ms=holder.due_ms,
        attempt=holder.attempt,
        until_ms=holder.until_ms,
    )


OPERATIONS: Final = (ShowKey, RemoveKey)
