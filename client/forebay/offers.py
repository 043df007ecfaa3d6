"""Offers items with unique keys (docs/protocol.md, "Keyed queues") and returns their outcomes.

    outcome = client.offer("crm", "customer-17", payload)
    if outcome is KeyOutcome.CONFLICT: ...

A queue whose `unique` is not `off` has each key once; the daemon's answer to the push has the
outcome of every offered item. If the queue's keys are not unique, every item is CREATED. After a
lost connection the client sends the same run again and gets the same answer.
"""

import base64
import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from forebay.exchange import WINDOW_RUNS, Exchange
from forebay.keyed import ONLY_IF_HEADER, KeyOutcome, read_outcomes
from forebay.limits import PRIORITY_NORMAL, RUN_ITEMS_DEFAULT, RUN_RAW_BYTES_DEFAULT
from forebay.priorities import resolve
from forebay.pusher import Pusher
from forebay.tally import Collected, Tally

Offered = tuple[bytes | str | None, bytes | str]
"""A key and a payload; an item without a key is always created."""
Timed = tuple[bytes | str | None, bytes | str, int]
"""The same, and when it is due, in milliseconds since 1970; 0: at once."""
_PLAIN: Final = {"flow": "", "action": "", "headers": None, "run_items": RUN_ITEMS_DEFAULT}


class _Pushing:
    """What a pusher needs of a client."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def submit(self, run: bytes, *, window: int, tally: Tally) -> None:
        self._exchange.push(run, window, tally)

    def drain(self) -> None:
        self._exchange.drain()


class Offers:
    """A part of the client."""

    _exchange: Exchange

    def offer(
        self,
        queue: str,
        key: bytes | str,
        payload: bytes | str,
        *,
        only_if: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> KeyOutcome:
        """Offers one item; options as for `offer_batch`.

        `only_if` is the id of an item: then this one is stored in its place if it is still the one
        that has the key and has not started, whatever the queue's policy; otherwise CONFLICT.
        """
        if only_if is not None:
            headers = {**(headers or {}), ONLY_IF_HEADER: only_if}
        return self.offer_batch(queue, [(key, payload)], headers=headers, **options)[0]

    def offer_batch(
        self,
        queue: str,
        items: Iterable[Offered],
        *,
        priority: int | str = PRIORITY_NORMAL,
        due_ms: int = 0,
        delay: float = 0.0,
        flow: str = "",
        action: str = "",
        headers: Mapping[str, str] | None = None,
        run_items: int = RUN_ITEMS_DEFAULT,
    ) -> list[KeyOutcome]:
        """Offers items, (key, payload) each, and returns their outcomes in order.

        When it raises, some of them may be stored; offered anew, those conflict with themselves.
        """
        if delay < 0 or (delay and due_ms):
            raise ValueError("a delay is not negative, and is not given together with a due time")
        if delay:
            due_ms = time.time_ns() // 1_000_000 + round(delay * 1000)
        timed = ((key, payload, due_ms) for key, payload in items)
        options = {"flow": flow, "action": action, "headers": headers, "run_items": run_items}
        return self.offer_timed(queue, timed, priority=priority, **options)

    def offer_timed(
        self,
        queue: str,
        items: Iterable[Timed],
        *,
        priority: int | str = PRIORITY_NORMAL,
        **options: Any,
    ) -> list[KeyOutcome]:
        """As `offer_batch`, with a due time for each item. Neighbours that are due at the same
        time travel together."""
        collected = Collected()
        pushing = _Pushing(self._exchange)
        rank = resolve(priority, self._labels)
        for due_ms, some in groupby(items, key=itemgetter(2)):
            pusher = Pusher(
                pushing,
                queue,
                priority=rank,
                due_ms=due_ms,
                delay=0.0,
                run_bytes=min(RUN_RAW_BYTES_DEFAULT, self._exchange.max_run_bytes),
                compressed=True,
                window=WINDOW_RUNS,
                tally=collected,
                **(_PLAIN | options),
            )
            for key, payload, _ in some:
                pusher.send(payload, key)
            pusher.flush()
        pushing.drain()
        return read_outcomes(collected.in_order())

    def _labels(self) -> dict[str, int]:
        labels: dict[str, int] = self._exchange.perform("config.priorities", {})["priorities"]
        return labels

    def key_show(self, queue: str, key: bytes | str) -> dict[str, Any]:
        """The item that has a key: `id`, `state`, `due_ms`, `attempt`, `until_ms`. Refused with
        NOT_FOUND if the key is free."""
        return self._exchange.perform("key.show", _of_key(queue, key))

    def key_drop(self, queue: str, key: bytes | str) -> dict[str, Any]:
        """Deletes the item that waits under a key, or ends the time for which the key of one that
        is done stays taken; who had it. Refused if it has started or is dead."""
        return self._exchange.perform("key.drop", _of_key(queue, key))


def _of_key(queue: str, key: bytes | str) -> dict[str, str]:
    if isinstance(key, str):
        return {"queue": queue, "key": key}
    return {"queue": queue, "key_b64": base64.b64encode(key).decode()}
