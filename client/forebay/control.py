"""Control requests (docs/protocol.md, "CONTROL"): dead letters, pauses, queues, breakers.

    with forebay.connect() as client:
        control = forebay.Control(client.control)
        for letter in control.dead_letters({"queue": "crm"}):
            print(letter["id"], letter["errors"][-1]["text"])

A thin layer: it returns the JSON objects that the document describes. Long lists are read page by
page, and many dead letters are changed step by step.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

PAGE: Final = 100
STEP: Final = 1000
QUEUES_PAGE: Final = 500

Which = Mapping[str, Any]
"""Which dead letters: `queue`, `flow`, `action`, `error`, `died_before_ms`, `died_after_ms`, `ids`.
All given members must match."""


class Perform(Protocol):
    """`Client.control`: an operation and its members, for its result."""

    def __call__(self, op: str, /, **fields: Any) -> dict[str, Any]: ...


class Control:
    def __init__(self, perform: Perform) -> None:
        self._perform = perform

    def dead_letters(
        self, which: Which, *, limit: int | None = None, payloads: bool = False, page: int = PAGE
    ) -> Iterator[dict[str, Any]]:
        """Dead letters, oldest first; `limit` of them, or all."""
        cursor: str | None = None
        while limit is None or limit > 0:
            wanted = page if limit is None else min(page, limit)
            result = self._perform(
                "dead.find", which=dict(which), limit=wanted, cursor=cursor, payloads=payloads
            )
            yield from result["letters"]
            if limit is not None:
                limit -= len(result["letters"])
            cursor = result.get("cursor")
            if cursor is None:
                return

    def dead_count(self, which: Which, *, stop_at: int = 100_000) -> int:
        """How many letters match, counted up to `stop_at`."""
        count: int = self._perform("dead.count", which=dict(which), stop_at=stop_at)["count"]
        return count

    def dead_retry(self, which: Which, *, progress: Callable[[int], None] | None = None) -> int:
        """Retries all letters that match; how many. `progress` is called with the number so far."""
        return self._steps("dead.retry", which, progress)

    def dead_remove(self, which: Which, *, progress: Callable[[int], None] | None = None) -> int:
        """Deletes all letters that match for good; how many."""
        return self._steps("dead.remove", which, progress)

    def dead_edit(self, item_id: str, payload: bytes) -> None:
        """Replaces the payload of a dead letter, which keeps its id and stays dead."""
        try:
            self._perform("dead.edit", id=item_id, payload=payload.decode())
        except UnicodeDecodeError:
            encoded = base64.b64encode(payload).decode()
            self._perform("dead.edit", id=item_id, payload_b64=encoded)

    def pause(self, queue: str, flow: str | None = None) -> dict[str, Any]:
        return self._perform("queues.pause", **_of_queue(queue, flow))

    def resume(self, queue: str, flow: str | None = None) -> dict[str, Any]:
        return self._perform("queues.resume", **_of_queue(queue, flow))

    def try_out(self, queue: str, *, send: bool = False, **item: Any) -> dict[str, Any]:
        """The request that the queue's handler makes of an item (`payload` or `payload_b64`, `key`,
        `flow`, `action`; or `from_dead`, a dead letter's id), and with `send` the outcome."""
        return self._perform("queues.try", queue=queue, send=send, **item)

    def purge(self, queue: str) -> dict[str, Any]:
        """Deletes waiting items: how many were `deleted`, and whether there are `more`."""
        return self._perform("queues.purge", queue=queue)

    def queue_stats(self, queue: str) -> dict[str, Any]:
        """Items by state, the books, failed attempts by reason, and how long processing takes."""
        return self._perform("queues.stats", queue=queue)

    def queues(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self._perform("queues.ls", limit=QUEUES_PAGE, cursor=cursor)
            found += page["queues"]
            cursor = page["cursor"]
            if cursor is None:
                return found

    def create_queue(self, queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self._perform("queues.add", queue=queue, settings=dict(settings))

    def change_queue(self, queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self._perform("queues.set", queue=queue, settings=dict(settings))

    def delete_queue(self, queue: str) -> None:
        self._perform("queues.rm", queue=queue)

    def breakers(self) -> list[dict[str, Any]]:
        breakers: list[dict[str, Any]] = self._perform("breakers.ls")["breakers"]
        return breakers

    def _steps(self, op: str, which: Which, progress: Callable[[int], None] | None) -> int:
        done: int = 0
        cursor: str | None = None
        while True:
            result = self._perform(op, which=dict(which), limit=STEP, cursor=cursor)
            done += result["done"]
            if progress is not None:
                progress(done)
            cursor = result.get("cursor")
            if cursor is None:
                return done


def letter_payload(letter: Mapping[str, Any]) -> bytes:
    """The payload of a letter, if it was requested with payloads."""
    if "payload_b64" in letter:
        return base64.b64decode(letter["payload_b64"])
    return str(letter.get("payload", "")).encode()


def _of_queue(queue: str, flow: str | None) -> dict[str, str]:
    return {"queue": queue} if flow is None else {"queue": queue, "flow": flow}
