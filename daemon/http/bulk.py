"""Bulk add: a stream of items as NDJSON, stored as runs, answered line by line as NDJSON.

    {"payload": …, "reference": …}\\n …   ──►   {"line": 1, "id": …, "outcome": "STORED"}\\n …

Neighbours that share flow, action, priority, time and headers become one run, of at most
`RUN_ITEMS` items and `RUN_BYTES`; at most `PUSHES_MAX` runs are being stored at a time. A line is
answered when its run is on disk or refused; a refused line does not end the stream. The last line
is a summary. Memory is bounded by these limits and by the unread answers (bulk_answers.py), for a
stream of any length.

If a client disconnects, the answered items are stored, and perhaps a few more. The same holds for
a client that is cut off because it does not read its answers and they take too much room. A line
without its line feed is not stored. Draining ends the stream: lines that were read are answered,
the rest is not read.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import trio
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from actors.ingest.large_bodies import SMALL_BYTES, VALUES_MAX, has_too_many_values
from actors.model.clock import wall_ms
from actors.model.internal_errors import INTERNAL_ERRORS
from daemon.http.bulk_answers import AnswerLog, Stalled
from daemon.http.doors import Doors
from daemon.http.models.items import NewItem
from daemon.http.problems import Problem, problem_of, unavailable
from daemon.http.pushing import Made, Push, begin_push, made
from forebay.errors import Refused

MEDIA_TYPE: Final = "application/x-ndjson"
RUN_ITEMS: Final = 1000
RUN_BYTES: Final = 256 * 1024
PUSHES_MAX: Final = 8
LINE_FACTOR: Final = 2
"""A payload may double in size as JSON or base64."""
STORED: Final = frozenset({"STORED", "DUPLICATE", "CREATED", "UPDATED"})
LINES_AT_ONCE: Final = 20
"""After this many lines the task yields to others."""
PAUSE_S: Final = 0.05
"""If no line arrives for this long, the lines so far are stored."""


class Line(NamedTuple):
    number: int
    item: Made | Problem


class Bulk(Response):
    """The answer to a bulk add: made while the request is read."""

    media_type = MEDIA_TYPE

    def __init__(self, doors: Doors, queue: str) -> None:
        super().__init__()
        self._doors = doors
        self._queue = queue
        self._waiting: list[Line] = []
        self._waiting_bytes = 0
        self._pushes: deque[tuple[list[Line], Push | Problem]] = deque()
        self._stored = self._refused = 0
        self._is_over = False
        self._answers = AnswerLog(doors.settings.state_dir, lambda: doors.tiers.spooler.disk_is_low)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", MEDIA_TYPE.encode())]
        try:
            async with trio.open_nursery() as nursery:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                nursery.start_soon(self._read, receive, nursery.cancel_scope)
                while data := await self._answers.take():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                nursery.cancel_scope.cancel()
        finally:
            self._answers.close()

    async def _read(self, receive: Receive, all_of_it: trio.CancelScope) -> None:
        """Reads, stores, and answers; never fails. A client that reads nothing is cut off without
        a message."""
        try:
            await self._read_lines(receive)
        except Stalled:
            all_of_it.cancel()

    async def _read_lines(self, receive: Receive) -> None:
        numbered = 0
        try:
            size_max = LINE_FACTOR * self._doors.settings.socket.max_run_bytes
            async with aclosing(lines_of(receive, size_max, self._settle)) as lines:
                async for text in lines:
                    numbered += 1
                    if numbered % LINES_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()
                    if len(text) > SMALL_BYTES:
                        await self._doors.large_bodies.wait(len(text))
                    await self._take(numbered, text)
                    if self._is_over:
                        break
            await self._store()
            while self._pushes:
                await self._answer_oldest()
        except Problem as problem:
            await self._say({"problem": as_object(problem)})
        except Stalled:
            raise
        except Exception as problem:
            await self._say({"problem": as_object(internal(problem))})
        summary = {"lines": numbered, "stored": self._stored, "refused": self._refused}
        await self._say(summary)
        self._answers.end()

    async def _take(self, number: int, text: bytes) -> None:
        if not text.strip():
            return
        line = Line(number, read_line(text, self._doors.catalogue.priorities))
        last = self._waiting[-1].item if self._waiting else None
        if isinstance(line.item, Problem):
            await self._store()
            await self._make_room()
            self._pushes.append(([line], line.item))
            return
        if isinstance(last, Made) and last.share != line.item.share:
            await self._store()
        self._waiting.append(line)
        self._waiting_bytes += len(line.item.payload) + len(line.item.key)
        if len(self._waiting) >= RUN_ITEMS or self._waiting_bytes >= RUN_BYTES:
            await self._store()

    async def _settle(self) -> None:
        """No line is arriving now: stores and answers what there is."""
        await self._store()
        while self._pushes:
            await self._answer_oldest()

    async def _store(self) -> None:
        """Begins to store the waiting lines."""
        if not self._waiting:
            return
        lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
        items = [line.item for line in lines if isinstance(line.item, Made)]
        await self._make_room()
        push: Push | Problem
        try:
            push = await begin_push(self._doors, self._queue, items)
        except Refused as refused:
            push = problem_of(refused)
        self._pushes.append((lines, push))

    async def _make_room(self) -> None:
        while len(self._pushes) >= PUSHES_MAX:
            await self._answer_oldest()

    async def _answer_oldest(self) -> None:
        lines, push = self._pushes.popleft()
        if isinstance(push, Push):
            try:
                outcomes = await push.wait()
            except Refused as refused:
                push = problem_of(refused)
            except trio.TooSlowError:
                push = unavailable(TimeoutError("it is not known whether this was stored"))
            else:
                self._stored += sum(outcome in STORED for outcome in outcomes)
                self._refused += sum(outcome not in STORED for outcome in outcomes)
                await self._answers.add(stored_lines(lines, push.ids, outcomes))
                return
        self._refused += len(lines)
        if push.slug == "draining":
            self._is_over = True
        for line in lines:
            await self._say({"line": line.number, "problem": as_object(push)})

    async def _say(self, content: dict[str, Any]) -> None:
        await self._answers.add(json.dumps(content, separators=(",", ":")).encode() + b"\n")


async def lines_of(
    receive: Receive, size_max: int, on_pause: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """The lines of a request's body, as they arrive. Raises Problem 413 if one is too long."""
    rest = bytearray()
    while True:
        message: Any = None
        with trio.move_on_after(PAUSE_S):
            message = await receive()
        if message is None:
            await on_pause()
            message = await receive()
        if message["type"] == "http.disconnect":
            return
        body = message.get("body", b"")
        rest += body
        if b"\n" in body:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield bytes(line)
        if len(rest) > size_max:
            raise Problem(413, f"a line has at most {size_max} bytes")
        if not message.get("more_body", False):
            if rest:
                yield bytes(rest)
            return


def read_line(text: bytes, priorities: Mapping[str, int]) -> Made | Problem:
    if has_too_many_values(text):
        return Problem(413, f"a line has at most {VALUES_MAX} JSON values")
    try:
        new = NewItem.model_validate_json(text)
        if new.run_id is not None:
            return Problem(422, "run_id is not allowed here: items share runs", "invalid")
        return made(new, priorities, wall_ms())
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Problem(422, f"{where}: {first['msg']}" if where else first["msg"], "invalid")
    except Problem as problem:
        return problem
    except Exception as problem:
        return internal(problem)


def internal(problem: Exception) -> Problem:
    """The answer to one line, or the end of a stream, because of a bug."""
    return problem_of(INTERNAL_ERRORS.note(problem, "HTTP", path="a stream of items"))


def stored_lines(lines: list[Line], ids: list[str], outcomes: list[str]) -> bytes:
    """Encodes JSON by hand: 0.3 µs per line instead of 2.7 with a call for each. Items that were
    not stored have no id."""
    shown = [
        f'"{item}"' if outcome in STORED else "null"
        for item, outcome in zip(ids, outcomes, strict=True)
    ]
    text = "".join(
        f'{{"line":{line.number},"id":{item},"outcome":"{outcome}"}}\n'
        for line, item, outcome in zip(lines, shown, outcomes, strict=True)
    )
    return text.encode()


def as_object(problem: Problem) -> dict[str, Any]:
    return {"type": problem.slug, "status": problem.status_code, "detail": problem.detail}
