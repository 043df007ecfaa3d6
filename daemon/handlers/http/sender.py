"""Sends batches as HTTP requests, one after the other on a persistent connection.

Owns its connections: one per concurrent send. If a request fails on a reused connection before the
first byte of an answer, it is sent once more on a new one, because destinations close idle
connections at any time. A batch that is refused or too large for the destination is sent in halves
until the refused items are alone, all within one deadline. After `SPLITS_MAX` refusals the rest
waits for its next attempt. Each request after the first waits for the queue's pace, which does not
count against the deadline.

On cancel it closes the connection in use and is ready for the next send. It cannot know whether the
destination took a request that was not answered; the idempotency key is for that.
"""

import math
import ssl
import time
from collections import defaultdict
from dataclasses import replace
from typing import Final

import structlog
import trio

from actors.config.handlers import HttpHandler
from actors.model.masking import named_secrets
from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.units import format_duration
from actors.ports.handler import DeliveryFailed, Pace, Prepared
from daemon.handlers.http.answer import (
    SPLIT_STATUSES,
    Answer,
    AnswerReader,
    Understood,
    failure_of,
    text_of,
    verdict,
    without_secrets,
)
from daemon.handlers.http.connection import ConnectionFailed, HttpConnection, LostBeforeAnswer
from daemon.handlers.http.request import HttpContent, RequestMaker, Target, halves

log = structlog.get_logger()

SPLITS_MAX: Final = 32
"""Splits of a refused batch. One bad item among 4,096 takes 12."""


class HttpSender:
    def __init__(
        self,
        settings: HttpHandler,
        target: Target,
        tls: ssl.SSLContext | None,
        requests: RequestMaker,
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._settings = settings
        self._target = target
        self._tls = tls
        self._requests = requests
        self._reader = AnswerReader(settings)
        self._splits = settings.on_refused == "split"
        secrets = named_secrets(settings.url, settings.headers)
        self._secrets = tuple(secret.encode() for secret in secrets)
        self._idle: list[HttpConnection] = []
        self._is_closed = False
        self._said_too_long = False
        self._said_suspect = False

    async def send(self, prepared: Prepared) -> Report:
        whole: HttpContent = prepared.content
        if not whole.encoded.ids:
            await trio.lowlevel.checkpoint()
            return Report(prepared.rejected)
        failures = list(prepared.rejected)
        waiting = [whole]
        splits = 0
        is_suspect = False
        stop: Failure | None = None
        with trio.move_on_after(self._settings.timeout) as scope:
            doing = _Doing(self._pace, scope)
            while waiting and stop is None:
                found = await self._ask(waiting[-1], doing)
                if isinstance(found, Answer) and verdict(found.status) == "delivered":
                    understood = self._understand(waiting[-1], found)
                    if isinstance(understood, Understood):
                        is_suspect |= understood.is_suspect
                        failures += failed_items(waiting.pop(), understood)
                        continue
                    found = understood
                if isinstance(found, Answer):
                    failure = failure_of(found, self._target.answering, time.time())
                    if self._may_split(found.status, waiting[-1]):
                        splits += found.status != 413
                        if splits <= SPLITS_MAX:
                            parts = halves(waiting.pop())
                            waiting += [self._requests.make(*part) for part in reversed(parts)]
                            continue
                        failure = replace(failure, is_permanent=False, failure_reason="application")
                    found = failure
                if found.blames_destination or waiting[-1] is whole:
                    # The remaining requests would fail in the same way now.
                    stop = found
                else:
                    failures += everything(waiting.pop(), found)
        if scope.cancelled_caught:
            patience = format_duration(self._settings.timeout)
            stop = Failure(f"{self._target.address}: {doing.what} took longer than {patience}")
        if stop is not None and waiting == [whole] and not failures:
            raise DeliveryFailed(stop)
        if stop is not None:
            for content in waiting:
                failures += everything(content, stop)
        return Report(tuple(failures), is_suspect)

    def _may_split(self, status: int, content: HttpContent) -> bool:
        if len(content.encoded.ids) < 2:
            return False
        return status == 413 or (self._splits and status in SPLIT_STATUSES)

    async def aclose(self) -> None:
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await trio.lowlevel.checkpoint()

    async def _ask(self, content: HttpContent, doing: "_Doing") -> Answer | Failure:
        try:
            await doing.may_ask()
            while self._idle:
                connection = self._idle.pop()
                if connection.is_stale:
                    connection.close()
                    continue
                try:
                    return await self._exchange(connection, content, doing)
                except LostBeforeAnswer:
                    await doing.may_ask()
                    break
            connection = HttpConnection(self._target, self._tls)
            doing.connection = connection
            await connection.connect()
            return await self._exchange(connection, content, doing)
        except ConnectionFailed as problem:
            return Failure(str(problem))

    async def _exchange(
        self, connection: HttpConnection, content: HttpContent, doing: "_Doing"
    ) -> Answer:
        doing.connection = connection
        answer = await connection.ask(
            self._requests.head, content.request, self._settings.answer_bytes_max
        )
        if connection.is_open:
            if self._is_closed:
                connection.close()
            else:
                self._idle.append(connection)
        return without_secrets(answer, self._secrets)

    def _understand(self, content: HttpContent, answer: Answer) -> Understood | Failure:
        """What a 2xx answer says about the items."""
        if answer.is_cut and not self._said_too_long:
            self._said_too_long = True
            log.warning(
                "http.answer_too_long",
                destination=self._target.destination,
                answer_bytes_max=self._settings.answer_bytes_max,
            )
        understood = self._reader.read(answer, content.encoded.ids)
        is_suspect = isinstance(understood, Understood) and understood.is_suspect
        if is_suspect and not self._said_suspect:
            self._said_suspect = True
            log.warning(
                "http.answer_suspect",
                destination=self._target.destination,
                status=answer.status,
                answer=text_of(answer),
                hint="describe it with `answer`, or set `suspect: fail`",
            )
        return understood


class _Doing:
    """The connection that a send is waiting for, and how many requests it has made."""

    def __init__(self, pace: Pace, scope: trio.CancelScope) -> None:
        self._pace = pace
        self._scope = scope
        self._requests = 0
        self.connection: HttpConnection | None = None

    async def may_ask(self) -> None:
        """Waits until another request may go. The deadline is put off by as long as that takes;
        the worker has waited for the first request."""
        self._requests += 1
        if self._requests > 1:
            left_s = self._scope.deadline - trio.current_time()
            self._scope.deadline = math.inf
            await self._pace.request()
            self._scope.deadline = trio.current_time() + left_s

    @property
    def what(self) -> str:
        return self.connection.doing if self.connection is not None else "starting"


def failed_items(content: HttpContent, understood: Understood) -> list[ItemsFailed]:
    """The single items that a 2xx answer refuses."""
    bits: defaultdict[tuple[int, Failure], int] = defaultdict(int)
    for number, failure in understood.failures.items():
        at, index = content.encoded.places[number]
        bits[content.orders[at], failure] |= 1 << index
    return [ItemsFailed(order, which, failure) for (order, failure), which in bits.items()]


def everything(content: HttpContent, failure: Failure) -> list[ItemsFailed]:
    """The failure of all items of a request."""
    left_out = {failed.order for failed in content.rejected}
    return [
        ItemsFailed(order, part.bits, failure)
        for at, (order, part) in enumerate(zip(content.orders, content.slices, strict=True))
        if at not in left_out
    ]
