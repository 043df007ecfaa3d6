"""Streams server-sent events to one client.

Owns the client's place among all watchers. A client that does not read makes `send` wait, and the
server cuts it off; nothing is queued for it. The stream ends on cancel, on `stopping` and when the
client disconnects; after `stopping` it ends properly, so that a browser reconnects.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final

import trio
from starlette.responses import Response

from actors.model.clock import Clock
from actors.observers.event_log import EventRing, Numbered
from actors.ports.tiers import StoreUnavailable
from daemon.http.problems import Problem

SAMPLE_S: Final = 2.0
FRESH_S: Final = 1.0
HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]
RECONNECT_MS: Final = 2000
BUSY_S: Final = 5
"""After how long a client that found no place may try again."""

Message = MutableMapping[str, Any]


class Samples:
    """The books as a compact sample; all requests within a second get the same one."""

    def __init__(
        self,
        report: Callable[[], Awaitable[dict[str, Any]]],
        make: Callable[[Mapping[str, Any]], dict[str, Any]],
        now_ms: Clock,
    ) -> None:
        self._report = report
        self._make = make
        self._now_ms = now_ms
        self._asking = trio.Lock()
        self._latest: dict[str, Any] = {}
        self._at = -FRESH_S

    async def latest(self) -> dict[str, Any]:
        async with self._asking:
            if trio.current_time() - self._at >= FRESH_S:
                self._latest = self._make(await self._report()) | {"at_ms": self._now_ms()}
                self._at = trio.current_time()
            return self._latest


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        ring: EventRing,
        samples: Samples,
        stopping: trio.Event,
        places: trio.CapacityLimiter,
        after: int,
    ) -> None:
        super().__init__()
        self._ring = ring
        self._samples = samples
        self._stopping = stopping
        self._places = places
        self._after = after

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            text = f"at most {self._places.total_tokens} clients watch at a time"
            raise Problem(503, text, "busy", retry_after_s=BUSY_S) from None
        try:
            await self._stream(receive, send)
        finally:
            self._places.release()

    async def _stream(
        self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, receive, nursery.cancel_scope)
            nursery.start_soon(self._until_stopping, nursery.cancel_scope)
            await self._write(send)
        if self._stopping.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Callable[[Message], Awaitable[None]]) -> None:
        await _body(send, f"retry: {RECONNECT_MS}\n\n".encode())
        while True:
            await _body(send, b"".join([*self._changes(), await self._sample()]))
            due = trio.current_time() + SAMPLE_S
            while trio.current_time() < due:
                with trio.move_on_at(due):
                    await self._ring.wait_after(self._after)
                await _body(send, b"".join(self._changes()))

    def _changes(self) -> list[bytes]:
        events = self._ring.after(self._after)
        lines = []
        if events and events[0].number > self._after + 1:
            missed = events[0].number - self._after - 1
            lines.append(told("missed", {"count": missed}))
        self._after = max([self._after, *(event.number for event in events)])
        return lines + [told("change", event.row, event) for event in events]

    async def _sample(self) -> bytes:
        try:
            return told("sample", await self._samples.latest())
        except (StoreUnavailable, trio.TooSlowError):
            # The client sees a missing sample; the line keeps the connection alive.
            return b": no sample\n\n"

    async def _until_gone(
        self, receive: Callable[[], Awaitable[Message]], scope: trio.CancelScope
    ) -> None:
        # A request body that does not end (Problem) ends the stream too.
        with suppress(Problem):
            while (await receive())["type"] != "http.disconnect":
                pass
        scope.cancel()

    async def _until_stopping(self, scope: trio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel()


def told(name: str, data: Mapping[str, Any], event: Numbered | None = None) -> bytes:
    head = f"id: {event.number}\n" if event is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def _body(send: Callable[[Message], Awaitable[None]], data: bytes) -> None:
    """Shielded from cancellation: a client would join half an event with the next one."""
    if data:
        with trio.CancelScope(shield=True):
            await send({"type": "http.response.body", "body": data, "more_body": True})
