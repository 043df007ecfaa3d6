"""One step on one queue in Valkey: its keys, its epoch, the time, and what every answer says."""

import math
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import trio

from actors.model.clock import Clock
from actors.ports.tiers import Fill, StoreUnavailable
from daemon.stores.valkey import keys
from daemon.stores.valkey.news import FLAG_MS, Kind, News, Told
from daemon.stores.valkey.server import Argument, Client, Script, Server, send


class Answer(NamedTuple):
    told: Told
    fill: Fill
    more: list[Any]


class SharedQueues:
    def __init__(self, server: Server, now_ms: Clock | None) -> None:
        """`now_ms` stands for the server's clock in tests."""
        self._server = server
        self._now_ms = now_ms
        self._prefix = server.settings.prefix
        self.news = News(server, self._look)
        self._generation = ""
        self._told_ms = 0
        self._told_at = 0.0
        """The server's time, and trio's when it was told."""

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
        now_ms, came, fell, items, size, scheduled, leased = counts
        told = Told(base, came, fell, None, now_ms)
        self.news.note(queue, told)
        self._told_ms, self._told_at = now_ms, trio.current_time()
        return Answer(told, Fill(items, size, scheduled, leased, items), more)

    def server_ms(self) -> int:
        """The server's time now, as far as it is known: it is told with every epoch and step."""
        return self._told_ms + round((trio.current_time() - self._told_at) * 1000)

    async def epoch(self, queue: str) -> bytes:
        """The epoch of a queue, which is made if the server does not know it."""
        # A token begins with the epoch, and is below 2^63, which is what the wire can say. What
        # follows is the number of a slice, in 40 bits.
        made = bytes([secrets.randbelow(127) + 1]) + secrets.token_bytes(15)
        names, args = self._call(queue, (made, secrets.randbelow(1 << 39), queue))
        found = await self._server.run(keys.EPOCH, [*names, keys.queues_key(self._prefix)], args)
        epoch: bytes = self._answered(queue, found).more[0]
        return epoch

    async def generation(self) -> str:
        """What the server's memory is known by. When it has changed, all queues are lost. The first
        daemon that finds an empty server gives it one."""
        key = keys.generation_key(self._prefix)
        made = secrets.token_hex(8)

        async def ask(client: Client) -> str:
            # A server that is full refuses to set it, and must not count as away for that.
            found: bytes | None = await send(client, "GET", key)
            if found is None:
                await send(client, "SET", key, made, "NX")
                found = await send(client, "GET", key)
            if found is None:
                raise StoreUnavailable("Valkey: it does not keep what it is told")
            return found.decode()

        found = await self._server.step(ask)
        if found != self._generation:
            self._generation = found
            await self._server.check_policy()
        return found

    async def left_by_older(self) -> list[str]:
        """The queues in which a forebay that shared runs of journals has left entries or outcomes:
        this version does not read them."""
        known: set[bytes] = await self._server.command("SMEMBERS", f"{self._prefix}:queues")
        found: list[str] = []
        for name in sorted(known):
            of_queue = f"{self._prefix}:{{{name.decode()}}}:"
            if await self._server.command("EXISTS", f"{of_queue}all") or await self._mail(of_queue):
                found.append(name.decode())
        return found

    async def _mail(self, of_queue: str) -> bool:
        cursor: Argument = 0
        while True:
            cursor, keys_ = await self._server.command(
                "SCAN", cursor, "MATCH", f"{of_queue}mail:*", "COUNT", 1000
            )
            if keys_:
                return True
            if int(cursor) == 0:
                return False

    async def take_turn(self, for_s: float) -> bool:
        """Whether no other daemon has had this turn within that time."""
        key = keys.turn_key(self._prefix)
        taken = await self._server.command("SET", key, "1", "NX", "PX", millis(for_s))
        return taken is not None

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
