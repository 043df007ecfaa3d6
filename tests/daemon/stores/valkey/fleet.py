"""Daemons that share a server: each with its own warm, one time that stands still for all."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Unpack

import trio

from actors.model.slices import InCold, LentRun, Slice, item_bits
from actors.ports.tiers import Leased
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.keys import queue_keys
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import EPOCH, START_MS, RunOptions, make_run
from tests.servers.valkey import ValkeyServer, new_prefix, shared_server


class Fleet:
    def __init__(self, server: ValkeyServer, bridge: Bridge) -> None:
        self.server = server
        self.prefix = new_prefix()
        self.time_ms = START_MS
        self.warms: list[ValkeyWarm] = []
        self._bridge = bridge

    def add(self, timeout_s: float = 60.0) -> ValkeyWarm:
        """Another daemon."""
        settings = ValkeySettings(self.server.url, prefix=self.prefix, timeout_s=timeout_s)
        warm = ValkeyWarm(settings, self._bridge, now_ms=lambda: self.time_ms)
        self.warms.append(warm)
        return warm

    def keys(self) -> list[str]:
        """Those that hold anything, beside what a queue is known by."""
        found = self.server.command("KEYS", f"{self.prefix}:rows:{{*")
        short = [key.decode().rpartition(":")[2] for key in found]
        return [name for name in sorted(short) if name != "state"]


@asynccontextmanager
async def fleet(
    daemons: int = 2, server: ValkeyServer | None = None
) -> AsyncIterator[tuple[Fleet, Sequence[ValkeyWarm]]]:
    """Daemons that share the queue `q`; its epoch is that of `make_row`."""
    async with Bridge() as bridge:
        found = Fleet(server or shared_server(), bridge)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(daemons):
                    await nursery.start(found.add().run)
                await make_queue(found.server, found.warms[0])
                yield found, list(found.warms)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                for warm in found.warms:
                    await warm.close()


async def make_queue(server: ValkeyServer, warm: ValkeyWarm) -> None:
    """The queue `q`, whose epoch is that of `make_row`."""
    state, *_ = queue_keys(warm.server.settings.prefix, "q")
    server.command("HSET", state, "epoch", EPOCH)
    assert await warm.epoch("q") == EPOCH


@asynccontextmanager
async def with_deadline(warm: ValkeyWarm, timeout_s: float) -> AsyncIterator[ValkeyWarm]:
    """The same server and the same keys, another deadline for each step, connections of its own."""
    settings = replace(warm.server.settings, timeout_s=timeout_s)
    other = ValkeyWarm(settings, warm.server.bridge)
    try:
        yield other
    finally:
        with trio.CancelScope(shield=True):
            await other.close()


async def row_in(
    warm: ValkeyWarm, number: int, items: int, *, queue: str = "q", **options: Unpack[RunOptions]
) -> LentRun:
    """A run of a row that is locked under the epoch that the queue has now."""
    options["owner"] = InCold(number.to_bytes(16, "big"), await warm.epoch(queue))
    return make_run(number, items, **options)


async def all_of(warm: ValkeyWarm, lease_s: float = 30.0) -> list[Leased]:
    return await warm.lease("q", 10**9, 10**12, lease_s)


async def all_rows_of(warm: ValkeyWarm, lease_s: float = 30.0) -> list[tuple[Leased, bool]]:
    return await warm.lease_rows("q", 10**9, 10**12, lease_s, frozenset())


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
