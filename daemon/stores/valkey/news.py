"""Wakes tasks that wait for a queue in Valkey: by a message from the server, or by polling.

Scripts publish arrivals and departures only if a flag says that a task waits. Each poll of a waiter
sets the flag for a little longer than until the next poll, so a busy queue publishes nothing. The
answers to this process's own steps count as news too.

A lost message only delays: one of the waiting tasks polls once per second, and when the next slice
comes due; the others rely on it. Nothing is durable. Waiters may be cancelled: another takes over
the polling.
"""

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import structlog
import trio

from actors.ports.tiers import StoreUnavailable
from daemon.stores.valkey.server import DRIVER_ERRORS, Client, Server

log = structlog.get_logger()

POLL_S: Final = 1.0
"""How late a waiter is woken at most."""
FLAG_MS: Final = 2500
"""How long after a poll the scripts publish; longer than until the next poll."""
SOON_S: Final = 0.005
"""The shortest wait for a slice that is almost due: two clocks never agree exactly."""
AGAIN_S: Final = 1.0
"""Until the subscription is tried again."""

Kind = Literal["waits", "changes"]
KINDS: Final[tuple[Kind, ...]] = ("waits", "changes")
Mark = tuple[bytes, int]
"""How often something has come or gone, and in which life of the queue."""


class Told(NamedTuple):
    """What was heard of a queue."""

    base: bytes
    came: int
    fell: int
    next_due_ms: int | None = None
    """When the next slice comes due; 0: none is scheduled; None: nothing was said of it."""
    now_ms: int = 0


Look = Callable[[str, Kind], Awaitable[Told]]


@dataclass(slots=True, eq=False)
class _Watch:
    marks: dict[Kind, Mark] = field(
        default_factory=lambda: {"waits": (b"", 0), "changes": (b"", 0)}
    )
    due_at: float = math.inf
    """On trio's clock."""
    changed: trio.Event = field(default_factory=trio.Event)
    looking: set[Kind] = field(default_factory=set)
    """The kinds of news for which one waiter polls on behalf of all."""


class News:
    def __init__(self, server: Server, look: Look) -> None:
        self._server = server
        self._look = look
        self._watches: defaultdict[str, _Watch] = defaultdict(_Watch)

    def note(self, queue: str, told: Told) -> None:
        watch = self._watches[queue]
        is_new = False
        for kind, number in zip(KINDS, (told.came, told.fell), strict=True):
            base, before = watch.marks[kind]
            # Messages and answers overtake each other.
            if base != told.base or number > before:
                watch.marks[kind] = (told.base, number)
                is_new = True
        if told.next_due_ms is not None:
            due_at = math.inf
            if told.next_due_ms:
                due_at = trio.current_time() + (told.next_due_ms - told.now_ms) / 1000
            is_new |= due_at < watch.due_at
            watch.due_at = due_at
        if is_new:
            _wake(watch)

    def mark(self, queue: str, kind: Kind) -> Mark:
        return self._watches[queue].marks[kind]

    async def until(self, queue: str, kind: Kind, after: Mark) -> None:
        """Returns when something has come or gone that `after` does not count."""
        watch = self._watches[queue]
        await trio.lowlevel.checkpoint()
        while watch.marks[kind] == after:
            if kind in watch.looking:
                await watch.changed.wait()
                continue
            watch.looking.add(kind)
            try:
                await self._look_after(queue, watch, kind, after)
            finally:
                watch.looking.remove(kind)
                # One of the others looks from now on.
                _wake(watch)

    async def _look_after(self, queue: str, watch: _Watch, kind: Kind, after: Mark) -> None:
        while True:
            changed = watch.changed
            self.note(queue, await self._look(queue, kind))
            if watch.marks[kind] != after:
                return
            left_s = watch.due_at - trio.current_time() if kind == "waits" else POLL_S
            with trio.move_on_after(min(POLL_S, max(SOON_S, left_s))):
                await changed.wait()
            if watch.marks[kind] != after:
                return

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens, as long as there is a server to listen to. One connection for all queues."""
        is_deaf = False
        while True:

            def listening() -> None:
                nonlocal is_deaf, task_status
                is_deaf = False
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

            try:
                await self._server.bridge.run(lambda: self._listen(listening), math.inf)
            except (StoreUnavailable, *DRIVER_ERRORS) as problem:
                if not is_deaf:
                    log.debug("warm.valkey_unheard", error=str(problem))
                is_deaf = True
            # The starting task does not wait for a server that is unavailable.
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(AGAIN_S)

    # In the loop's thread.

    async def _listen(self, listening: Callable[[], None]) -> None:
        client: Client = self._server.client()
        await client.initialize()
        prefix = self._server.settings.prefix
        async with client.pubsub() as subscription:
            await subscription.psubscribe(f"{prefix}:rows:{{*}}:news")
            async for message in subscription.listen():
                if message["type"] == "psubscribe":
                    self._server.bridge.call_in_trio(listening)
                elif message["type"] == "pmessage":
                    channel = message["channel"].decode()
                    queue = channel[len(prefix) + len(":rows:{") : -len("}:news")]
                    self._server.bridge.call_in_trio(self._hear, queue, message["data"])

    # In trio's thread again.

    def _hear(self, queue: str, data: bytes) -> None:
        came, fell, next_due_ms, now_ms = map(int, data[3:].split())
        self.note(queue, Told(data[:3], came, fell, next_due_ms, now_ms))


def _wake(watch: _Watch) -> None:
    watch.changed.set()
    watch.changed = trio.Event()
