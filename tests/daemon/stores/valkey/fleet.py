"""Daemons that share a server: each with its own warm, one time that stands still for all."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from actors.model.slices import LentRun, Slice, item_bits
from actors.ports.tiers import Leased
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import START_MS
from tests.servers.valkey import ValkeyServer, new_prefix, shared_server

VALID_S = 10.0
LONG_S = 10**6


def daemon_id(number: int) -> bytes:
    return bytes([number]) * 16


class Fleet:
    def __init__(self, server: ValkeyServer, bridge: Bridge) -> None:
        self.server = server
        self.prefix = new_prefix()
        self.time_ms = START_MS
        self.warms: list[ValkeyWarm] = []
        self._bridge = bridge

    def add(self, number: int | None = None, timeout_s: float = 60.0, **options: Any) -> ValkeyWarm:
        """Another daemon; the same one again, if it has the number of one."""
        if number is None:
            number = len(self.warms) + 1
        settings = ValkeySettings(self.server.url, prefix=self.prefix, timeout_s=timeout_s)
        warm = ValkeyWarm(
            settings, daemon_id(number), self._bridge, now_ms=lambda: self.time_ms, **options
        )
        self.warms.append(warm)
        return warm

    def keys(self) -> list[str]:
        """Those that hold anything, beside what a queue is known by."""
        found = self.server.command("KEYS", f"{self.prefix}:{{*")
        short = [key.decode().rpartition(":")[2] for key in found]
        return [name for name in sorted(short) if name not in ("state", "valid")]


@asynccontextmanager
async def fleet(
    daemons: int = 2, server: ValkeyServer | None = None
) -> AsyncIterator[tuple[Fleet, Sequence[ValkeyWarm]]]:
    """Daemons whose entries in `q` are valid for very long."""
    async with Bridge() as bridge:
        found = Fleet(server or shared_server(), bridge)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(daemons):
                    warm = found.add()
                    await nursery.start(warm.run)
                    await warm.keep_valid(["q"], LONG_S)
                yield found, list(found.warms)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                for warm in found.warms:
                    await warm.close()


@asynccontextmanager
async def with_deadline(warm: ValkeyWarm, timeout_s: float) -> AsyncIterator[ValkeyWarm]:
    """The same server and the same keys, another deadline for each step, connections of its own."""
    settings = replace(warm.server.settings, timeout_s=timeout_s)
    other = ValkeyWarm(settings, daemon_id(99), warm.server.bridge)
    try:
        yield other
    finally:
        with trio.CancelScope(shield=True):
            await other.close()


async def all_of(warm: ValkeyWarm, lease_s: float = 30.0) -> list[Leased]:
    return await warm.lease("q", 10**9, 10**12, lease_s)


def items_of(slices: Sequence[Slice | Leased]) -> list[tuple[bytes, int]]:
    """Run ids and indexes, one for each item."""
    found: list[tuple[bytes, int]] = []
    for each in slices:
        slice_ = each.slice if isinstance(each, Leased) else each
        bits, run_id = slice_.bits, slice_.run.head.run_id
        found += [(run_id, index) for index in range(bits.bit_length()) if bits >> index & 1]
    return found


def some(run: LentRun, *indexes: int) -> Slice:
    return Slice(run, sum(1 << index for index in indexes))


def span(run: LentRun, first: int, last: int) -> Slice:
    return Slice(run, item_bits(first, last))
