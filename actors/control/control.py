"""Control: the requests of operators and their tools (docs/protocol.md "CONTROL").

Each operation checks its fields, does one step and returns the resulting state. It owns nothing:
dead letters belong to the cold store, queues and pauses to the catalogue, breakers to their actor.
"""

import base64
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

from actors.breaker.breaker import Breakers
from actors.config.catalogue import UNSEEN, Catalogue, Seen, not_found
from actors.model.masking import holds_mask
from actors.model.refusals import bad_request, spent_job
from actors.ports.tiers import DeadFilter, DeadLetter, DeadLetters, StoreUnavailable
from forebay.errors import BadRun, Refused
from forebay.item import FAILURE_REASONS, FailureReason, read_failure_reason

LIMIT_MAX: Final = 1000
IDS_MAX: Final = 1000
STOP_AT: Final = 100_000


class Fields:
    """The fields of a request; missing, invalid or unknown ones are refused."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    def text(self, name: str) -> str:
        value = self._fields.pop(name, None)
        if not isinstance(value, str) or not value:
            raise bad_request(f"{name} must be a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        value = self._fields.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{name} must be a text")
        return value

    def number(self, name: str, default: int | None, first: int = 0, last: int = 2**53) -> Any:
        value = self._fields.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not first <= value <= last:
            raise bad_request(f"{name} must be a whole number, {first} to {last}")
        return value

    def flag(self, name: str) -> bool:
        value = self._fields.pop(name, False)
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be true or false")
        return value

    def object(self, name: str) -> dict[str, Any]:
        value = self._fields.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise bad_request(f"{name} must be an object")
        return value

    def settings(self) -> dict[str, Any]:
        """Settings to put in force. Refuses masked secrets, which would replace the real ones."""
        settings = self.object("settings")
        if holds_mask(settings):
            raise bad_request(
                "settings: a secret is masked as ***: leave it out, or give it in full"
            )
        return settings

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        value = self._fields.pop(name, None)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise bad_request(f"{name} must be a list of texts")
        if len(value) > most:
            raise bad_request(f"{name} has at most {most} entries")
        return tuple(value)

    def bytes(self, name: str) -> bytes | None:
        text = self.text_or_none(name)
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise bad_request(f"{name} is not base64") from None

    def end(self) -> None:
        if self._fields:
            raise bad_request(f"unknown field {next(iter(self._fields))!r}")


Operation = Callable[[Fields], Awaitable[dict[str, Any]]]


class Controls:
    def __init__(
        self,
        catalogue: Catalogue,
        dead: DeadLetters,
        breakers: Breakers,
        seen: Callable[[], Awaitable[Mapping[str, Seen]]],
        wake_promoter: Callable[[str], None],
        now_ms: Callable[[], int],
        others: Mapping[str, Operation] | None = None,
    ) -> None:
        """`seen`: the counts of all queues that were ever seen, from the books. `others` are
        operations of other files."""
        self._catalogue = catalogue
        self._dead = dead
        self._breakers = breakers
        self._seen = seen
        self._wake_promoter = wake_promoter
        self._now_ms = now_ms
        self._operations: dict[str, Operation] = {
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
            **(others or {}),
        }

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        operation = self._operations.get(op)
        if operation is None:
            raise bad_request(
                f"there is no operation {op}: there are {', '.join(self._operations)}"
            )
        try:
            return await operation(Fields(fields))
        except BadRun as problem:
            raise bad_request(str(problem)) from problem
        except OSError as problem:
            raise StoreUnavailable(f"the change cannot be kept: {problem.strerror}") from problem

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
            self._wake_promoter(queue)
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
        self._wake_promoter(queue)
        return await self._queue_object(queue)

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        seen = await self._seen()
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

    async def check_exists(self, queue: str) -> Seen:
        """The counts of a queue in the books; raises NOT_FOUND if the queue does not exist."""
        entry = (await self._seen()).get(queue, UNSEEN)
        if not self._catalogue.exists(queue, entry):
            raise not_found(queue)
        return entry

    async def _queue_object(self, queue: str) -> dict[str, Any]:
        held = (await self._seen()).get(queue, UNSEEN).held
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
            until_ms = self._now_ms() + round((state.until - trio.current_time()) * 1000)
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


@contextmanager
def cursor_is_known() -> Iterator[None]:
    """Turns a store's ValueError about a cursor that it did not issue into a refusal."""
    try:
        yield
    except ValueError as problem:
        raise bad_request(f"cursor: {problem}") from problem


def read_filter(fields: Fields) -> DeadFilter:
    which = Fields(fields.object("which"))
    found = DeadFilter(
        which.text_or_none("queue"),
        which.text_or_none("flow"),
        which.text_or_none("action"),
        which.text_or_none("error"),
        which.number("died_before_ms", None),
        which.number("died_after_ms", None),
        which.texts("ids", IDS_MAX),
        read_reason(which),
    )
    which.end()
    return found


def read_reason(fields: Fields) -> FailureReason | None:
    text = fields.text_or_none("failure_reason")
    if text is None:
        return None
    reason = read_failure_reason(text)
    if reason is None:
        raise bad_request(f"failure_reason must be one of {', '.join(FAILURE_REASONS)}")
    return reason


def cursor_text(cursor: bytes | None) -> str | None:
    return None if cursor is None else base64.b64encode(cursor).decode()


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    letter_ = {
        "id": letter.id,
        "queue": letter.queue,
        "flow": letter.flow,
        "action": letter.action,
        "key": letter.key,
        "priority": letter.priority,
        "attempt": letter.attempt,
        "enqueued_ms": letter.enqueued_ms,
        "died_ms": letter.died_ms,
        "headers": dict(letter.headers),
        "errors": [error._asdict() for error in letter.errors],
    }
    if letter.payload is not None:
        try:
            letter_["payload"] = letter.payload.decode()
        except UnicodeDecodeError:
            letter_["payload_b64"] = base64.b64encode(letter.payload).decode()
    return letter_
