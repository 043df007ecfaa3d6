"""A rig for warm in Valkey: its time stands still, and scripts take it for the server's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from actors.model.slices import InCold
from actors.ports.tiers import WarmQueue
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.keys import queue_keys
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import EPOCH, START_MS, Rig, in_row
from tests.servers.valkey import ValkeyServer, new_prefix

QUEUES = ("q", "other", "a", "b", "r", "empty")
"""Those into which something enters in the suites."""


class ValkeyRig(Rig):
    patience_s = 60.0

    def __init__(self, server: ValkeyServer, bridge: Bridge) -> None:
        self._time_ms = START_MS + 3_600_000
        self._prefix = new_prefix()
        settings = ValkeySettings(server.url, prefix=self._prefix, timeout_s=60.0)
        self.valkey = ValkeyWarm(settings, bridge, now_ms=self.now_ms, flows_age_s=0.0)
        self._server = server
        self._settled = 0

    @property
    def warm(self) -> WarmQueue:
        return self.valkey

    def owner(self, number: int) -> InCold:
        return in_row(number)

    def now_ms(self) -> int:
        return self._time_ms

    def steady_ms(self) -> int:
        return self._time_ms

    async def advance(self, ms: int) -> None:
        self._time_ms += ms

    def step(self, ms: int) -> None:
        """The server's clock is not this host's to set."""

    async def make_queues(self) -> None:
        """All with the same epoch, so that a run need not know where it enters. Their tokens begin
        with the epoch, and differ by where the queues begin to count."""
        for number, queue in enumerate(QUEUES):
            state, *_ = queue_keys(self._prefix, queue)
            self._server.command("HSET", state, "epoch", EPOCH, "seq", number * 1_000_000)
            assert await self.valkey.epoch(queue) == EPOCH

    async def settle(self) -> None:
        """News arrive in order: when those of an unused queue are here, all earlier ones are."""
        await wait_all_tasks_blocked()
        self._settled += 1
        self._server.command(
            "PUBLISH", f"{self._prefix}:rows:{{settle}}:news", b"set%d 0 0 0" % self._settled
        )
        with trio.fail_after(self.patience_s):
            while self.valkey.news.mark("settle", "waits") != (b"set", self._settled):
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()


@asynccontextmanager
async def valkey_rig(server: ValkeyServer) -> AsyncIterator[ValkeyRig]:
    async with Bridge() as bridge:
        rig = ValkeyRig(server, bridge)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(rig.valkey.run)
                await rig.make_queues()
                yield rig
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await rig.valkey.close()
