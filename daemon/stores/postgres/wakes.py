"""Wakes between daemons: who makes something due tells the others, by LISTEN and NOTIFY.

Owns one connection that listens, outside the pool, since a session that listens cannot be shared.
A wake is said after the transaction that it is about, in one of its own: a NOTIFY inside would
make the commits of all daemons wait for each other. It is a hint: a daemon that does not hear it
(killed between the two, the connection lost, a pooler in between) finds the work at its next tick.

On cancel: the connection is closed. Lost connections are made again, with pauses.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import asyncpg
import structlog
import trio

from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from daemon.stores.bridge import Bridge, LoopEvent
from daemon.stores.postgres.errors import DRIVER_ERRORS, Again, translated

log = structlog.get_logger()

AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 30.0


class Wakes:
    def __init__(
        self,
        url: str | None,
        channel: str,
        daemon: bytes,
        timeout_s: float,
        bridge: Bridge,
        on_wake: Callable[[str], None],
        *,
        password: str | None = None,
    ) -> None:
        """`url` None: it does not listen. `on_wake` is called in trio's thread."""
        self._url = url
        self._password = password
        self._channel = channel
        self._name = daemon.hex()
        self._timeout_s = timeout_s
        self._bridge = bridge
        self._on_wake = on_wake
        self._is_listening = False
        self.listening = trio.Event()
        """Set when it has listened for the first time."""

    def notices(self, queues: Iterable[str]) -> str | None:
        """What is to be said of queues that have something due now, in SQL."""
        return (
            "; ".join(
                f"NOTIFY \"{self._channel}\", '{self._name} {queue}'" for queue in sorted(queues)
            )
            or None
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens until it is cancelled."""
        task_status.started()
        if self._url is None:
            await trio.sleep_forever()
        pause_s = AGAIN_S
        while True:
            try:
                await self._bridge.run(self._listen, math.inf)
            except (Again, StoreUnavailable, StoreCorrupt) as error:
                log.debug("cold.not_listening", error=str(error))
            pause_s = AGAIN_S if self._is_listening else min(2 * pause_s, AGAIN_S_MAX)
            self._is_listening = False
            await trio.sleep(pause_s)

    def _began(self) -> None:
        self._is_listening = True
        self.listening.set()

    # In the drivers' thread.

    async def _listen(self) -> None:
        """Until the connection is lost."""
        lost = LoopEvent()
        con: Any = None
        try:
            con = await asyncpg.connect(
                self._url,
                password=self._password,
                timeout=self._timeout_s,
                statement_cache_size=0,
                server_settings={"application_name": "forebay listening"},
            )
            con.add_termination_listener(lambda _: lost.set())
            await con.add_listener(self._channel, self._heard)
            self._bridge.call_in_trio(self._began)
            await lost.wait()
        except DRIVER_ERRORS as error:
            raise translated(error, is_committing=False) from error
        finally:
            if con is not None:
                with suppress(*DRIVER_ERRORS):
                    con.terminate()

    def _heard(self, con: object, pid: int, channel: str, said: str) -> None:
        name, _, queue = said.partition(" ")
        if name != self._name:
            self._bridge.call_in_trio(self._on_wake, queue)
