"""Sends batches as HTTP requests, one after the other on a persistent connection.

Owns its connections: one per concurrent send. If a request fails on a reused connection before the
first byte of an answer, it is sent once more on a new one, because destinations close idle
connections at any time. A request that is refused or too large for the destination is sent in
halves until the refused items are alone. After `SPLITS_MAX` refusals the rest waits for its next
attempt. Each request has the handler's timeout; after that time no further one is begun. Items that
are left are reported as untried, unless a request with them was refused: they wait for their next
attempt too. Each request after the first waits for the queue's
pace, which does not count against these times.

On cancel it closes the connection in use and is ready for the next send. It cannot know whether the
destination took a request that was not answered; the idempotency key is for that.
"""

import math
import ssl
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import structlog
import trio

from actors.config.http import HttpHandler
from actors.config.presets import preset_for
from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.units import format_duration
from actors.ports.handler import DeliveryFailed, Pace, Prepared
from daemon.handlers.http.answer import (
    SPLIT_STATUSES,
    Answer,
    AnswerReader,
    Understood,
    secrets_of,
    text_of,
    verdict,
    without_secrets,
)
from daemon.handlers.http.auth import Auth
from daemon.handlers.http.connection import ConnectionFailed, HttpConnection, LostBeforeAnswer
from daemon.handlers.http.request import (
    HttpContent,
    HttpRequest,
    RequestMaker,
    Target,
    bits_of,
    halves,
)

log = structlog.get_logger()

_DELIVERED: Final = Report()
SPLITS_MAX: Final = 32
"""Splits of a refused batch. One bad item among 4,096 takes 12."""


class HttpSender:
    def __init__(
        self,
        settings: HttpHandler,
        target: Target,
        tls: ssl.SSLContext | None,
        requests: RequestMaker,
        auth: Auth,
        pace: Pace,
    ) -> None:
        self._auth = auth
        self._pace = pace
        self._settings = settings
        self._target = target
        self._tls = tls
        self._requests = requests
        self._reader = AnswerReader(settings)
        self._splits = settings.on_refused == "split"
        self._secrets = secrets_of(settings.url, settings.headers)
        self._idle: list[HttpConnection] = []
        self._is_closed = False
        self._said_too_long = False
        self._said_suspect = False

    async def send(self, prepared: Prepared) -> Report:
        content: HttpContent = prepared.content
        waiting = [_Waiting(request) for request in reversed(content.requests)]
        sent = _Sent(list(prepared.rejected), waiting)
        if not sent.waiting:
            await trio.lowlevel.checkpoint()
            return sent.report()
        turns = Turns(self._pace)
        while sent.waiting and turns.may_begin(self._settings.timeout):
            request = sent.waiting.pop().request
            found = self.judge(request, await self.ask(request, turns))
            if isinstance(found, Understood):
                sent.is_suspect |= found.is_suspect
                if found.failures:
                    sent.failures += failed_items(request, found)
                continue
            if not found.blames_destination and self._may_split(found.status, request):
                sent.splits += found.status != 413
                # The whole request is refused; it is not known yet which of its items are.
                found = replace(found, is_permanent=False, failure_reason="application")
                if sent.splits <= SPLITS_MAX:
                    parts = halves(self._requests, prepared.batch, request)
                    sent.waiting += [_Waiting(part, found) for part in reversed(parts)]
                    continue
            if not sent.failures and [request] == list(content.requests):
                raise DeliveryFailed(found)
            sent.failures += request.failed(found)
            if found.blames_destination:
                # The remaining requests would fail in the same way now.
                for rest in sent.waiting:
                    sent.failures += rest.request.failed(found)
                sent.waiting.clear()
        return sent.report()

    def _may_split(self, status: int | None, request: HttpRequest) -> bool:
        if len(request.ids) < 2:
            return False
        return status == 413 or (self._splits and status in SPLIT_STATUSES)

    async def aclose(self) -> None:
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await trio.lowlevel.checkpoint()

    async def ask(self, request: HttpRequest, turns: "Turns") -> Answer | Failure:
        """Sends a request. A Failure means that there was no answer."""
        with trio.move_on_after(self._settings.timeout) as scope:
            doing = _Doing(turns, scope)
            try:
                return await self._authorized(request, doing)
            except ConnectionFailed as problem:
                return Failure(str(problem))
            except DeliveryFailed as problem:
                return problem.failure
        assert scope.cancelled_caught
        patience = format_duration(self._settings.timeout)
        return Failure(f"{self._target.address}: {doing.what} took longer than {patience}")

    async def _authorized(self, request: HttpRequest, doing: "_Doing") -> Answer:
        """Once more with a new token if the old one is refused."""
        lines = await self._auth.lines(request.key, request.body, time.time())
        answer = await self._exchange(request, lines, doing)
        if answer.status == 401 and await self._auth.renewed(lines):
            lines = await self._auth.lines(request.key, request.body, time.time())
            answer = await self._exchange(request, lines, doing)
        return without_secrets(answer, self._secrets + self._auth.secrets)

    async def _exchange(self, request: HttpRequest, lines: bytes, doing: "_Doing") -> Answer:
        data = b"%b%b\r\n%b" % (request.head, lines, request.body)
        if doing.turns.count() > 1:
            await doing.may_ask()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_stale:
                connection.close()
                continue
            try:
                return await self._ask_on(connection, data, doing)
            except LostBeforeAnswer:
                doing.turns.count()
                await doing.may_ask()
                break
        connection = HttpConnection(self._target, self._tls)
        doing.connection = connection
        await connection.connect()
        return await self._ask_on(connection, data, doing)

    async def _ask_on(self, connection: HttpConnection, data: bytes, doing: "_Doing") -> Answer:
        doing.connection = connection
        answer = await connection.ask(self._requests.head, data, self._settings.answer_bytes_max)
        if connection.is_open:
            if self._is_closed:
                connection.close()
            else:
                self._idle.append(connection)
        return answer

    def judge(self, request: HttpRequest, answer: Answer | Failure) -> Understood | Failure:
        """What an answer means for the items of a request. A Failure concerns all of them."""
        if isinstance(answer, Failure):
            return answer
        if verdict(answer.status) != "delivered":
            return self._reader.failure(answer, self._target.answering, time.time())
        if answer.is_cut and not self._said_too_long:
            self._said_too_long = True
            log.warning(
                "http.answer_too_long",
                destination=self._target.destination,
                answer_bytes_max=self._settings.answer_bytes_max,
            )
        understood = self._reader.read(answer, request.ids)
        if isinstance(understood, Failure):
            understood = replace(understood, is_suspect=True)
        if understood.is_suspect and not self._said_suspect:
            self._said_suspect = True
            log.warning(
                "http.answer_suspect",
                destination=self._target.destination,
                status=answer.status,
                answer=text_of(answer),
                hint=self._hint(),
            )
        return understood

    def _hint(self) -> str:
        if self._settings.answer is not None:
            return "the answer does not have the form that `answer` describes"
        preset = preset_for(self._target.host)
        if preset is not None:
            return f"use `preset: {preset}`"
        return "describe it with `answer`, or set `suspect: fail`"


class Turns:
    """The requests of one send. The worker has waited for the first one."""

    __slots__ = ("_pace", "_requests", "_until")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._until = 0.0
        self._requests = 0

    def may_begin(self, timeout_s: float) -> bool:
        """Whether another request may begin: for as long as one request may take, without the time
        spent waiting for the pace."""
        if not self._until:
            self._until = trio.current_time() + timeout_s
            return True
        return trio.current_time() <= self._until

    def count(self) -> int:
        """Counts a request; its number."""
        self._requests += 1
        return self._requests

    async def wait(self) -> float:
        """Waits until another request may go; returns how long that took."""
        began = trio.current_time()
        await self._pace.request()
        waited_s = trio.current_time() - began
        self._until += waited_s
        return waited_s


class _Doing:
    """The connection that a request is waiting for."""

    __slots__ = ("_scope", "connection", "turns")

    def __init__(self, turns: Turns, scope: trio.CancelScope) -> None:
        self.turns = turns
        self._scope = scope
        self.connection: HttpConnection | None = None

    async def may_ask(self) -> None:
        """Waits until the request may go. The deadline is put off by as long as that takes."""
        deadline, self._scope.deadline = self._scope.deadline, math.inf
        self._scope.deadline = deadline + await self.turns.wait()

    @property
    def what(self) -> str:
        return self.connection.doing if self.connection is not None else "starting"


class _Waiting(NamedTuple):
    """A request that is not sent yet."""

    request: HttpRequest
    refused: Failure | None = None
    """It is a part of a request that was refused like this: an attempt is spent."""


@dataclass(slots=True)
class _Sent:
    """How far a batch has come."""

    failures: list[ItemsFailed]
    waiting: list[_Waiting]
    """The next one last."""
    splits: int = 0
    is_suspect: bool = False

    def report(self) -> Report:
        if not (self.failures or self.waiting or self.is_suspect):
            return _DELIVERED
        untried: list[tuple[int, int]] = []
        for request, refused in self.waiting:
            if refused is not None:
                self.failures += request.failed(refused)
            else:
                untried += bits_of(request.places)
        return Report(tuple(self.failures), self.is_suspect, tuple(untried))


def failed_items(request: HttpRequest, understood: Understood) -> list[ItemsFailed]:
    """The single items that a 2xx answer refuses."""
    bits: defaultdict[tuple[int, Failure], int] = defaultdict(int)
    for number, failure in understood.failures.items():
        order, index = request.places[number]
        bits[order, failure] |= 1 << index
    return [ItemsFailed(order, which, failure) for (order, failure), which in bits.items()]
