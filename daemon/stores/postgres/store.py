"""The cold tier in PostgreSQL: the `ColdQueue` that the daemons of a fleet share.

Owns a few connections (daemon/stores/postgres/connection.py) and the confirmed rows of the
database. Every method is one transaction. Durable on return (`synchronous_commit=on`): `store`,
`confirm`, `forget`, `claim`, `drop_stream`, every change of dead letters, and `settle` where items
move to other rows or the caller asks for it. Within a second: `acquire`, `renew`, `release`,
`note_history`, and any other `settle`; losing one of these can only deliver again.

Leases and due times use the server's clock. Rows that this daemon stored and did not confirm, and
rows that it holds, carry its id and outlive its process: call `release_all` after `open`.

What it cannot do: survive a failover to an asynchronous standby without losing commits
(`require_sync_standby` refuses new rows then), or hear other daemons' wakes through PgBouncer in
transaction mode (it finds the work at the next tick).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from actors.model.books import ColdReceipt
from actors.ports.tiers import (
    ColdTotals,
    FlowCount,
)
from daemon.stores.bridge import Bridge
from daemon.stores.cold.store import ColdStore
from daemon.stores.postgres import (
    books,
)
from daemon.stores.postgres.connection import Database
from daemon.stores.postgres.members import PostgresMembers
from daemon.stores.postgres.schema import is_current, migrate
from daemon.stores.postgres.shared_rows import PostgresSharedRows
from daemon.stores.postgres.steps import PostgresSteps
from daemon.stores.postgres.wakes import Wakes

SCHEMA: Final = "forebay"
CONNECTIONS_MAX: Final = 3
FOLD_S: Final = 60.0
"""How often counters of flows that are gone are looked for."""

ServerClock = Callable[[], int | None]
"""None: the server's own clock. Tests use others, where time stands still."""


def servers_clock() -> None:
    return None


def ignore_wake(queue: str) -> None:
    """For stores that no other daemon shares."""


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """How to reach the server, and what is required of it."""

    url: str
    timeout_s: float
    """For one transaction, including the time to connect."""
    schema: str = SCHEMA
    connections_max: int = CONNECTIONS_MAX
    require_sync_standby: bool = False
    """Whether new rows are refused while no standby commits synchronously."""
    is_pooled: bool = False
    """Whether the URL leads to PgBouncer in transaction mode."""
    listen_url: str | None = None
    """A URL that does not lead to PgBouncer. If `is_pooled`, it is needed to hear when other
    daemons make something due."""
    password: str | None = None
    """Used for both URLs, if given."""


class PostgresCold(ColdStore):
    def __init__(
        self,
        settings: PostgresSettings,
        daemon: bytes,
        bridge: Bridge,
        on_wake: Callable[[str], None] = ignore_wake,
        *,
        now_ms: ServerClock = servers_clock,
    ) -> None:
        """`daemon` is this daemon's id. Another daemon that makes something due in a queue causes
        `on_wake(queue)`, while `listen` runs."""
        url, timeout_s, schema = settings.url, settings.timeout_s, settings.schema
        self._db = Database(
            url,
            timeout_s,
            bridge,
            schema,
            connections_max=settings.connections_max,
            is_pooled=settings.is_pooled,
            password=settings.password,
        )
        self._schema = schema
        self._daemon = daemon
        self._now_ms = now_ms
        self._folded_at = 0.0
        listen_url = settings.listen_url or (None if settings.is_pooled else url)
        self.wakes = Wakes(
            listen_url, schema, daemon, timeout_s, bridge, on_wake, password=settings.password
        )
        steps = PostgresSteps(
            self._db,
            daemon,
            now_ms,
            self.wakes.notices,
            needs_standby=settings.require_sync_standby,
        )
        super().__init__(steps)
        self.shared_rows = PostgresSharedRows(self._db, steps, daemon, now_ms, lambda: self._rules)
        self.members = PostgresMembers(self._db, daemon, now_ms)

    async def open(self) -> None:
        """Raises StoreUnavailable if the server does not answer, and CannotStart if the schema is
        from a newer forebay."""
        await self._db.open(
            partial(migrate, schema=self._schema), partial(is_current, schema=self._schema)
        )

    async def listen(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A task: calls `on_wake` when another daemon makes something due. Never returns."""
        await self.wakes.run(task_status)

    async def totals(self) -> Mapping[str, ColdTotals]:
        return await self._db.read(lambda con: books.read_totals(con, self._daemon))

    async def flows(self) -> Sequence[FlowCount]:
        return await self._db.read(books.read_flows)

    async def oldest(self) -> Mapping[tuple[str, str, str], int]:
        return await self._db.read(books.read_oldest)

    async def receipt(self, write: bytes) -> ColdReceipt:
        return await self._db.read(lambda con: books.read_receipt(con, write))

    async def forget_receipts(self, writes: Sequence[bytes]) -> None:
        await self._db.write(lambda con: books.forget_receipts(con, writes), is_durable=False)

    async def put_off_anew(self) -> None:
        """Nothing to do: rows follow the server's clock."""

    async def write_off(self, missing: Mapping[str, int]) -> bool:
        """PostgreSQL is never set aside: missing rows may be in another database."""
        return False

    async def sync(self) -> None:
        """Everything so far is durable on return. Call it about once a second."""
        await self._db.sync()
        if trio.current_time() >= self._folded_at + FOLD_S:
            self._folded_at = trio.current_time()
            await self._db.write(books.fold, is_durable=False)

    async def close(self) -> None:
        await self._db.close()
