"""One step on one queue in Valkey: its keys, the time, and what every answer says.

What is here is shared by the port (warm.py) and by what owners need beyond it (owner_side.py).
"""

import math
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from actors.model.clock import Clock
from actors.ports.tiers import Fill, StoreUnavailable
from daemon.stores.valkey import keys
from daemon.stores.valkey.news import FLAG_MS, Kind, News, Told
from daemon.stores.valkey.server import Argument, Client, Script, Server


class Answer(NamedTuple):
    told: Told
    fill: Fill
    more: list[Any]


class SharedQueues:
    def __init__(self, server: Server, daemon: bytes, now_ms: Clock | None) -> None:
        """`now_ms` stands for the server's clock in tests."""
        self._server = server
        self._daemon = daemon
        self._now_ms = now_ms
        self._prefix = server.settings.prefix
        self.news = News(server, self._look)
        self._joined: dict[str, bytes] = {}
        """The queues that this daemon is known to enter something into, and their bases."""

    @property
    def server(self) -> Server:
        """For what else is kept there (shared_limits.py)."""
        return self._server

    async def _run(
        self, script: Script, queue: str, *args: Argument, shield: bool = False
    ) -> list[Any]:
        names, args = self._call(queue, args)
        found: list[Any] = await self._server.run(script, names, args, shield=shield)
        return found

    async def _run_each(
        self, script: Script, queues: Sequence[str], *args: Argument
    ) -> dict[str, list[Any]]:
        """The same for many queues. The first problem is everyone's."""
        found = await self._server.run_each(script, [self._call(queue, args) for queue in queues])
        return dict(zip(queues, found, strict=True))

    def _call(
        self, queue: str, args: tuple[Argument, ...]
    ) -> tuple[Sequence[str], tuple[Argument, ...]]:
        now = "" if self._now_ms is None else self._now_ms()
        return keys.queue_keys(self._prefix, queue), (now, *args)

    async def _step(
        self, script: Script, queue: str, *args: Argument, shield: bool = False
    ) -> Answer:
        """Of a script that tells the counts."""
        return self._answered(queue, await self._run(script, queue, *args, shield=shield))

    def _answered(self, queue: str, found: list[Any]) -> Answer:
        base, counts, *more = found
        now_ms, came, fell, items, size, scheduled, leased, cold = counts
        told = Told(base, came, fell, None, now_ms)
        self.news.note(queue, told)
        return Answer(told, Fill(items, size, scheduled, leased, cold), more)

    async def _joining(self, script: Script, queue: str, *args: Argument) -> list[Any]:
        """Of a script that wants the queue to be known; it makes it known where need be."""
        if queue not in self._joined:
            await self._join(queue)
        for _ in range(2):
            found = await self._run(script, queue, *args, shield=True)
            if found[0] == self._joined[queue]:
                return found
            # The server has forgotten the queue, or another daemon has made it again.
            await self._join(queue)
            if found[0]:
                return found
        raise StoreUnavailable(f"Valkey: the queue {queue} does not stay known")

    async def _join(self, queue: str) -> None:
        """Before anything of this daemon is there, so that its mail is found whatever happens."""
        state, *_ = keys.queue_keys(self._prefix, queue)
        # A token is below 2^63, which is what the wire can say.
        base = bytes([secrets.randbelow(127) + 1]) + secrets.token_bytes(2)

        async def join(client: Client) -> bytes:
            await self._list([queue], client)
            await client.execute_command("HSETNX", state, "base", base)
            found: bytes = await client.execute_command("HGET", state, "base")
            return found

        self._joined[queue] = await self._server.step(join)

    async def _list(self, queues: Sequence[str], client: Client) -> None:
        """As queues that are there, and that this daemon uses. As a part of a step."""
        for key in (
            keys.queues_key(self._prefix),
            keys.daemon_queues_key(self._prefix, self._daemon),
        ):
            await client.execute_command("SADD", key, *queues)

    async def _look(self, queue: str, kind: Kind) -> Told:
        answer = await self._step(keys.LOOK, queue, kind, FLAG_MS)
        told, (next_due_ms,) = answer.told, answer.more
        return told._replace(next_due_ms=next_due_ms)

    async def _queues(self) -> list[str]:
        found: set[bytes] = await self._server.command("SMEMBERS", keys.queues_key(self._prefix))
        return sorted(name.decode() for name in found)


def millis(seconds: float) -> int:
    """As the server counts; what is endless lasts very long."""
    return round(seconds * 1000) if seconds < math.inf else 10**15
