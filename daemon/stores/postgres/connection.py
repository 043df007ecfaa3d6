"""The connections to PostgreSQL: one transaction at a time on each, in the drivers' thread.

Owns a pool of a few connections. A step is one hop into that thread (daemon/stores/bridge.py) and
one transaction: BEGIN with all its settings, the step's statements, COMMIT. Nothing is left in a
session, so that a connection through PgBouncer in transaction mode serves as well.

On cancel: a step that only reads ends; one that writes is carried through within its deadline. A
connection whose step was cut short is dropped: what the server made of it is unknown.

This is the store's edge: asyncpg's exceptions end here (daemon/stores/postgres/errors.py). Steps
that the server undid because they were in each other's way, and those whose connection was lost,
are taken again with growing pauses until the deadline; while the server is known to be away, once.

No statement reads a whole table of runs, however little the statistics know: `enable_seqscan` and
`enable_bitmapscan` are off (without statistics, a bitmap of 900,000 rows was made to find three),
and with them `jit`, which would take the plans of small tables for expensive ones.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import asyncpg
import trio

from actors.ports.tiers import StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.cold.connection import RunAgain
from daemon.stores.postgres.errors import DRIVER_ERRORS, Again, is_sound_after, translated

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.01
PAUSE_S_MAX: Final = 0.5
STATEMENTS_CACHED: Final = 256
MIGRATE_S: Final = 600.0


class Connection(Protocol):
    """What the steps use of asyncpg's."""

    async def executemany(self, query: str, rows: Sequence[Sequence[object]]) -> None: ...

    async def execute(self, query: str, *args: object) -> str: ...

    async def fetch(self, query: str, *args: object) -> Sequence[Any]: ...

    async def fetchrow(self, query: str, *args: object) -> Any: ...

    async def fetchval(self, query: str, *args: object) -> Any: ...


Work = Callable[[Connection], Awaitable[T]]


class Database:
    def __init__(
        self,
        url: str,
        timeout_s: float,
        bridge: Bridge,
        schema: str,
        *,
        connections_max: int,
        is_pooled: bool,
        password: str | None = None,
    ) -> None:
        self._url = url
        self._password = password
        self._timeout_s = timeout_s
        self._bridge = bridge
        self._connections_max = connections_max
        self._is_pooled = is_pooled
        timeout_ms = max(1, round(timeout_s * 1000))
        self._settings = (
            f'SET LOCAL search_path = "{schema}"; SET LOCAL enable_seqscan = off; '
            "SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off; "
            f"SET LOCAL statement_timeout = {timeout_ms}; "
            # A daemon that was stopped, or its host, in the middle of a step must not keep its
            # locks: all others would wait for it.
            f"SET LOCAL idle_in_transaction_session_timeout = {timeout_ms}"
        )
        self._pool: Any = None
        self._is_away = True
        """Until it has answered once: an operator who starts the daemon hears at once that it does
        not, and not after all retries."""
        self._is_unsynced = False

    async def open(self, migrate: Work[None], is_current: Work[bool] | None = None) -> None:
        """Connects, and runs `migrate` as a transaction, unless all is current. That may
        take longer than any other step, or wait for another daemon that does it; whether the
        server is there at all is known before."""
        if self._pool is None:
            self._pool = await self._bridge.run(self._make_pool, self._timeout_s)
        try:
            if is_current is None or not await self.read(is_current):
                await self.write(migrate, timeout_s=max(MIGRATE_S, self._timeout_s))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Harmless if it is closed already."""
        if self._pool is not None:
            pool, self._pool = self._pool, None

            async def end() -> None:
                # Steps that were given up are not waited for.
                pool.terminate()

            # A bridge that is closed has closed them.
            with suppress(StoreUnavailable):
                await self._bridge.run(end, self._timeout_s, shield=True)

    async def read(self, work: Work[T]) -> T:
        """Runs `work` on one state of the database."""
        begin = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {self._settings}"
        return await self._step(begin, work, is_write=False)

    async def write(
        self,
        work: Work[T],
        *,
        is_durable: bool = True,
        is_repeatable: bool = True,
        after: Callable[[T], str | None] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Runs `work` as a transaction, more than once if need be.

        `is_repeatable`: it may be repeated when nobody knows whether it was committed. `after`:
        what is said, in SQL, once it is; whether that is heard does not matter. `timeout_s`: it
        may take longer than other steps do, and so is not carried through on cancel.
        """
        commit = "on" if is_durable else "off"
        begin = f"BEGIN; {self._settings}; SET LOCAL synchronous_commit = {commit}"
        if timeout_s is not None:
            begin += f"; SET LOCAL statement_timeout = {round(timeout_s * 1000)}"
        result = await self._step(
            begin,
            work,
            is_write=True,
            is_repeatable=is_repeatable,
            after=after,
            timeout_s=timeout_s,
        )
        # A commit that waits for the disk takes with it all that were before it.
        self._is_unsynced = not is_durable
        return result

    async def sync(self) -> None:
        """What was written is durable on return. Free if it is already."""
        if self._is_unsynced:
            # A transaction with a number of its own writes something that its commit waits for.
            await self.write(lambda con: con.fetchval("SELECT txid_current()"))

    async def _step(
        self,
        begin: str,
        work: Work[T],
        *,
        is_write: bool,
        is_repeatable: bool = True,
        after: Callable[[T], str | None] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        deadline = trio.current_time() + (timeout_s or self._timeout_s)
        pause_s = FIRST_PAUSE_S
        is_shielded = is_write and timeout_s is None
        with trio.CancelScope(shield=is_shielded):
            while True:
                if self._pool is None:
                    raise StoreUnavailable("the cold store is not open")
                left_s = max(0.0, deadline - trio.current_time())
                try:
                    result = await self._bridge.run(
                        lambda: _attempt(self._pool, begin, work, after),
                        left_s,
                        shield=is_shielded,
                    )
                except Again as again:
                    if again.is_unknown and not is_repeatable:
                        # One connection was lost. That says nothing of the server: others, whose
                        # connections were cut as well, must not give up because of it.
                        raise StoreUnavailable(again.text) from again.__cause__
                    if not again.is_lost:
                        # The server is there: it said so.
                        self._is_away = False
                    is_last = trio.current_time() + pause_s >= deadline
                    if is_last or self._is_away:
                        self._is_away = again.is_lost
                        raise StoreUnavailable(again.text) from again.__cause__
                except StoreUnavailable:
                    self._is_away = True
                    raise
                else:
                    self._is_away = False
                    return result
                await trio.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        raise AssertionError("the loop ends with a result or an error")

    # In the drivers' thread.

    async def _make_pool(self) -> Any:
        try:
            return await asyncpg.create_pool(
                self._url,
                password=self._password,
                min_size=0,
                max_size=self._connections_max,
                timeout=self._timeout_s,
                # Through a pooler the next transaction may meet another session.
                statement_cache_size=0 if self._is_pooled else STATEMENTS_CACHED,
                server_settings={"application_name": "forebay"},
                reset=_leave_as_it_is,
            )
        except DRIVER_ERRORS as error:
            raise translated(error, is_committing=False) from error


async def _attempt(
    pool: Any, begin: str, work: Work[T], after: Callable[[T], str | None] | None
) -> T:
    try:
        con = await pool.acquire()
    except ValueError as error:
        # Among them the driver's own for what it does not understand.
        raise StoreUnavailable(f"PostgreSQL: the URL: {error}") from error
    except DRIVER_ERRORS as error:
        raise translated(error, is_committing=False) from error
    is_committing = is_sound = False
    try:
        await con.execute(begin)
        result = await work(con)
        is_committing = True
        await con.execute("COMMIT")
        is_sound = await _say(con, after(result) if after is not None else None)
        return result
    except DRIVER_ERRORS as error:
        is_sound = is_sound_after(error) and await _say(con, "ROLLBACK")
        raise translated(error, is_committing=is_committing) from error
    except RunAgain as error:
        is_sound = await _say(con, "ROLLBACK")
        raise Again(str(error), is_lost=False, is_unknown=False) from error
    except Exception:
        # The step's own: it is undone.
        is_sound = await _say(con, "ROLLBACK")
        raise
    finally:
        if not is_sound:
            with suppress(asyncpg.InterfaceError):
                con.terminate()
        await pool.release(con)


async def _say(con: Any, said: str | None) -> bool:
    """Whether the connection can still be used."""
    try:
        if said is not None:
            await con.execute(said)
    except DRIVER_ERRORS:
        return False
    return True


async def _leave_as_it_is(con: object) -> None:
    """asyncpg's own costs a round trip, and there is nothing to put right."""
