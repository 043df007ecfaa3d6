"""Batches for the tests, and what a sender makes of them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from actors.config.http import HttpHandler
from actors.model.outcomes import Failure, Report
from actors.model.slices import InJournal, LentRun, Slice
from actors.ports.handler import DeliveryFailed, NoPace, Pace, Prepared
from daemon.handlers.http.handler import HttpDelivery
from daemon.handlers.http.sender import HttpSender
from forebay.run import encode_run, read_head


def lent(
    payloads: Sequence[bytes],
    *,
    keys: Sequence[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> LentRun:
    data = encode_run(
        list(payloads),
        queue="crm",
        keys=None if keys is None else list(keys),
        flow="nightly",
        action="upsert",
        priority=5,
        headers=dict(headers or {}),
    )
    return LentRun(read_head(data), data, InJournal(token=1, position=0))


def a_slice(*payloads: bytes, bits: int | None = None, attempt: int = 0, **fields: Any) -> Slice:
    run = lent(payloads, **fields)
    return Slice(run, (1 << len(payloads)) - 1 if bits is None else bits, attempt)


def damaged_slice() -> Slice:
    """A run whose header is fine and whose body is not."""
    whole = lent([b"a" * 1000, b"b" * 1000])
    head = whole.head
    data = whole.data[: head.head_bytes] + b"\xff" * head.body_bytes
    return Slice(LentRun(head, data, whole.owner), 0b11)


class Sending:
    """A handler, and one sender of it."""

    def __init__(self, handler: HttpDelivery, pace: Pace | None = None) -> None:
        self.handler = handler
        self.sender: HttpSender = handler.open_sender(pace or NoPace())

    def prepare(self, *batch: Slice) -> Prepared:
        return self.handler.prepare(batch)

    async def send(self, *batch: Slice) -> Report:
        return await self.sender.send(self.prepare(*batch))

    async def delivers(self, *batch: Slice) -> None:
        assert await self.send(*batch) == Report()

    async def failure(self, *batch: Slice) -> Failure:
        with pytest.raises(DeliveryFailed) as caught:
            await self.send(*batch)
        return caught.value.failure


def sending(url: str, **settings: Any) -> AbstractAsyncContextManager[Sending]:
    return sending_at(NoPace(), url, **settings)


@asynccontextmanager
async def sending_at(pace: Pace, url: str, **settings: Any) -> AsyncIterator[Sending]:
    # The timeout is the test's business, never the machine's.
    handler = HttpDelivery(
        "crm", HttpHandler.model_validate({"url": url, "timeout": "1h", **settings})
    )
    opened = Sending(handler, pace)
    try:
        yield opened
    finally:
        await opened.sender.aclose()
        await handler.aclose()
