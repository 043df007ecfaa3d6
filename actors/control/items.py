"""Items: finds, shows, deletes and changes single items, as CONTROL operations.

`items.find` searches (actors/control/item_search.py), `items.show` shows one item with its history,
`items.delete` and `items.change` act on an item that waits (actors/control/item_change.py) or is a
dead letter. One table (actors/model/states.py) says which changes are legal: all others are refused
with CONFLICT and the states that are allowed.

It owns nothing. A change is durable when it is answered. An item that moves between tiers during a
change is looked for again, a few times; then the request is refused with BUSY and may be repeated.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from actors.control.fields import LIMIT_MAX, Fields, Operation, cursor_is_known, read_reason
from actors.control.item_change import Change, Changer
from actors.control.item_find import Finder
from actors.control.item_search import ItemFilter, ItemSearch
from actors.control.item_view import Sighting, describe_apart, held_now
from actors.model.finished import FinishedRow
from actors.model.refusals import bad_request, spent_job
from actors.model.slices import cut_text
from actors.model.states import IllegalChange, State, Who, allowed_from, next_state
from actors.observers.history import History
from actors.ports.tiers import (
    ColdSight,
    DeadFilter,
    StoreUnavailable,
)
from actors.spooler.messages import JournalRun
from actors.tiers.tiers import Tiers
from actors.workers.workers import Workers
from forebay.errors import Refused
from forebay.limits import PRIORITY_MAX, TIME_MS_MAX

TRIES: Final = 8
PAUSE_S: Final = 0.05
"""Pause between tries: an item that moves between tiers usually arrives within milliseconds."""
SAME_ID_MAX: Final = 10
"""Dead letters of one item: one, unless it was delivered twice and failed twice."""
SET_ASIDE_TEXT: Final = "set aside by an operator"


class WrongState(Refused):
    """The item's state does not allow the change."""

    def __init__(self, text: str, state: State, allowed: tuple[State, ...]) -> None:
        super().__init__("CONFLICT", text)
        self.state = state
        self.allowed = allowed


class Items:
    def __init__(self, tiers: Tiers, workers: Workers, history: History, payload_max: int) -> None:
        """`payload_max`: the limit for a new payload."""
        self._tiers = tiers
        self._workers = workers
        self._finder = Finder(tiers, history)
        self._search = ItemSearch(tiers)
        self._changer = Changer(tiers)
        self._cold = tiers.cold
        self._dead = tiers.cold.dead_letters
        self._keeps = history.keep
        self._payload_max = payload_max
        self.operations: Mapping[str, Operation] = {
            "items.find": self._find_op,
            "items.show": self._show_op,
            "items.delete": self._delete_op,
            "items.change": self._change_op,
        }

    async def withdraw(self, item_id: str) -> None:
        """Deletes a waiting item on behalf of the daemon: a dead letter stays, with its error."""
        await self._try(item_id, State.DELETED, Change(), Who.DAEMON)

    async def _find_op(self, fields: Fields) -> dict[str, Any]:
        which = read_item_filter(Fields(fields.object("which")))
        limit = fields.number("limit", 100, 1, LIMIT_MAX)
        cursor = fields.text_or_none("cursor")
        fields.end()
        with cursor_is_known():
            items, rest = await self._search.search(which, limit, cursor or "")
        return {"items": items, "cursor": rest}

    async def _show_op(self, fields: Fields) -> dict[str, Any]:
        item_id, payload = fields.text("id"), fields.flag("payload")
        whole = fields.flag("whole")
        fields.end()
        sighting = held_now(
            await self._finder.find(item_id), self._workers.tasks(), socket.gethostname()
        )
        return await describe_apart(sighting, payload=payload or whole, whole=whole)

    async def _delete_op(self, fields: Fields) -> dict[str, Any]:
        item_id = fields.text("id")
        fields.end()
        before = await self._try(item_id, State.DELETED, Change())
        return {"id": item_id, "queue": before.head.queue, "state": State.DELETED.value}

    async def _change_op(self, fields: Fields) -> dict[str, Any]:
        item_id, wanted, change = fields.text("id"), read_state(fields), read_change(fields)
        fields.end()
        if wanted is None and change == Change():
            raise bad_request("nothing to change: give state, payload, priority or due_ms")
        if change.payload is not None and len(change.payload) > self._payload_max:
            raise Refused("TOO_LARGE", f"a payload has at most {self._payload_max} bytes")
        before = await self._try(item_id, wanted, change)
        if wanted is State.DELETED:
            return {"id": item_id, "queue": before.head.queue, "state": State.DELETED.value}
        return await describe_apart(await self._finder.find(item_id), payload=False)

    async def _try(
        self, item_id: str, wanted: State | None, change: Change, who: Who = Who.OPERATOR
    ) -> Sighting:
        """Returns the item as it was before."""
        for _ in range(TRIES):
            sighting = await self._finder.find(item_id)
            check_change(sighting.state, wanted or sighting.state, who)
            if await self._apply(item_id, sighting, wanted or sighting.state, change):
                return sighting
            await trio.sleep(PAUSE_S)
        raise Refused("BUSY", f"item {item_id} is on its way between tiers", retry_after_ms=1000)

    async def _apply(self, item_id: str, seen: Sighting, wanted: State, change: Change) -> bool:
        if seen.state is State.FAILED:
            return await self._apply_dead(item_id, seen, wanted, change)
        if wanted is State.DELETED:
            is_done = await self._changer.apply(seen, None)
            if is_done:
                await self._note(seen)
            return is_done
        return await self._changer.apply(seen, of_state(seen, wanted, change))

    async def _apply_dead(
        self, item_id: str, seen: Sighting, wanted: State, change: Change
    ) -> bool:
        only = DeadFilter(ids=(item_id,))
        if wanted is State.DELETED:
            return (await self._dead.remove(only, SAME_ID_MAX)).done > 0
        if change.priority is not None or change.due_ms is not None:
            text = "of a dead letter the payload can be changed, not priority or time"
            raise WrongState(text, seen.state, allowed_from(seen.state, Who.OPERATOR))
        if wanted is not State.FAILED and isinstance(seen.owner, ColdSight) and seen.owner.is_spent:
            raise spent(item_id)
        if change.payload is not None and not await self._dead.edit(item_id, change.payload):
            return False
        if wanted is State.FAILED:
            return True
        retried = await self._dead.retry(only, SAME_ID_MAX)
        if retried.spent:
            raise spent(item_id)
        self._tiers.wake(seen.head.queue)
        return retried.done > 0

    async def _note(self, seen: Sighting) -> None:
        """Adds an item of the journal to the history; the cold store notes its own."""
        owner = seen.owner
        if not isinstance(owner, JournalRun) or self._keeps(seen.head.queue) == "none":
            return
        row = FinishedRow(
            seen.head,
            seen.data,
            seen.bit,
            seen.attempt,
            "deleted",
            self._tiers.now_ms(),
            seen.errors,
            seen.holder,
        )
        # The item is gone in any case, and history is best effort.
        with suppress(StoreUnavailable):
            await self._cold.note_history([row])


def check_change(before: State, wanted: State, who: Who) -> None:
    try:
        next_state(before, wanted, who)
    except IllegalChange as problem:
        raise WrongState(str(problem), problem.before, problem.allowed) from problem
    if before is State.RUNNING:
        text = "a worker or consumer has the item: nothing of it can be changed"
        raise WrongState(text, before, ())


def spent(item_id: str) -> WrongState:
    return WrongState(spent_job(item_id).text, State.FAILED, (State.DELETED,))


def of_state(seen: Sighting, wanted: State, change: Change) -> Change:
    """The change that moves a waiting item into a state."""
    match wanted:
        case State.FAILED:
            return change._replace(error=change.error or SET_ASIDE_TEXT)
        case State.SCHEDULED if change.due_ms is None and seen.state is not State.SCHEDULED:
            raise bad_request("an item is put off until a time: give due_ms")
        case State.QUEUED if seen.state is not State.QUEUED and change.due_ms is None:
            return change._replace(due_ms=0, error=None)
        case _:
            return change._replace(error=None)


def read_state(fields: Fields) -> State | None:
    text = fields.text_or_none("state")
    if text is None:
        return None
    if text not in State.__members__:
        raise bad_request(f"state must be one of {', '.join(State)}")
    return State(text)


def read_change(fields: Fields) -> Change:
    text, payload = fields.text_or_none("payload"), fields.bytes("payload_b64")
    if text is not None and payload is not None:
        raise bad_request("give payload or payload_b64")
    if text is not None:
        payload = as_bytes("payload", text)
    error = fields.text_or_none("error")
    return Change(
        payload,
        fields.number("priority", None, 0, PRIORITY_MAX),
        fields.number("due_ms", None, 0, TIME_MS_MAX),
        None if error is None else cut_text(error),
    )


def as_bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise bad_request(f"{name} is not a valid text: it has half of a character") from problem


def read_item_filter(which: Fields) -> ItemFilter:
    found = ItemFilter(
        which.text_or_none("queue"),
        read_state(which),
        which.text_or_none("key"),
        which.text_or_none("correlation_id"),
        which.text_or_none("error"),
        which.number("before_ms", None),
        which.number("after_ms", None),
        which.text_or_none("traceparent"),
        read_reason(which),
    )
    which.end()
    return found
