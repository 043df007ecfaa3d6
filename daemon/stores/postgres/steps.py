"""Runs the steps of the cold store on PostgreSQL: on asyncpg's loop, one transaction each."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from actors.model.finished import Keeps
from actors.ports.tiers import RowOutcome, StoreUnavailable
from daemon.stores.cold.books import Books
from daemon.stores.cold.connection import Room, Step
from daemon.stores.cold.statement import Statement
from daemon.stores.cold.text import ESCAPE, from_text, to_text
from daemon.stores.postgres.books import record
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.keys import PostgresKeys
from daemon.stores.postgres.rows import NOW, PostgresRows

T = TypeVar("T")

PICK: Final = f"SELECT pick($2, $3, $4, $5, $6, $7, $8, {NOW})"


class PostgresConnection:
    """`Connection` for the steps. Texts are in words that the server can store."""

    makes_room = False

    def __init__(self, con: Connection, daemon: bytes, now_ms: int | None) -> None:
        """`now_ms`: None for the server's clock."""
        self._con = con
        self._now_ms = now_ms
        self._found_ms = now_ms
        self.daemon = daemon
        self.rows = PostgresRows(con, daemon, now_ms)
        self.keys = PostgresKeys(con, now_ms)
        self.woken: set[str] = set()
        self.jobs: set[bytes] = set()

    async def fetch(self, statement: Statement, *values: Any) -> Sequence[Sequence[Any]]:
        return _read(await self._con.fetch(statement.postgres, *self._given(statement, values)))

    async def first(self, statement: Statement, *values: Any) -> Sequence[Any] | None:
        row = await self._con.fetchrow(statement.postgres, *self._given(statement, values))
        return None if row is None else _read([row])[0]

    async def execute(self, statement: Statement, *values: Any) -> int:
        done = await self._con.execute(statement.postgres, *self._given(statement, values))
        return int(done.rpartition(" ")[2])

    async def each(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            given = [self._given(statement, row) for row in rows]
            await self._con.executemany(statement.postgres, given)

    async def pick(self, queue: str, except_flows: Collection[str], room: Room) -> list[int] | None:
        flows = [to_text(flow) for flow in sorted(except_flows)]
        picked: list[int] | None = await self._con.fetchval(PICK, self._now_ms, queue, flows, *room)
        return picked

    async def now(self) -> int:
        if self._found_ms is None:
            self._found_ms = int(await self._con.fetchval(f"SELECT {NOW}", None))
        return self._found_ms

    async def record(self, books: Books) -> None:
        self.jobs |= await record(self._con, self.daemon, books)

    async def settle_delivered(
        self, outcomes: Sequence[RowOutcome], keeps: Keeps
    ) -> list[bool] | None:
        # The long way takes a handful of statements here, however many outcomes there are.
        return None

    def wake(self, queue: str) -> None:
        self.woken.add(queue)

    def _given(self, statement: Statement, values: Sequence[Any]) -> list[Any]:
        given = [_stored(value) for value in values]
        return [*given, self._now_ms] if statement.has_clock else given


class PostgresSteps:
    """The cold store's `Database`."""

    def __init__(
        self,
        db: Database,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        notices: Callable[[Iterable[str]], str | None],
        *,
        needs_standby: bool = False,
    ) -> None:
        """`notices`: the statement that tells other daemons of queues. `needs_standby`: new work is
        refused while no standby commits synchronously."""
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._notices = notices
        self._needs_standby = needs_standby

    async def read(self, step: Step[T]) -> T:
        return await self._db.read(lambda con: step(self._connection(con)))

    async def write(
        self,
        step: Step[T],
        *,
        is_durable: bool = True,
        is_new_work: bool = False,
        may_fill_disk: bool = False,
        is_repeatable: bool = True,
    ) -> T:
        async def work(con: Connection) -> tuple[T, set[str]]:
            if is_new_work and is_durable and self._needs_standby:
                await check_standby(con)
            connection = self._connection(con)
            return await step(connection), connection.woken

        result, _ = await self._db.write(
            work,
            is_durable=is_durable,
            is_repeatable=is_repeatable,
            after=lambda done: self._notices(done[1]),
        )
        return result

    async def sync(self) -> None:
        await self._db.sync()

    def _connection(self, con: Connection) -> PostgresConnection:
        return PostgresConnection(con, self._daemon, self._now_ms())


async def check_standby(con: Connection) -> None:
    """StoreUnavailable if a commit here would be on one machine only."""
    if not await con.fetchval(HAS_STANDBY):
        raise StoreUnavailable(
            "PostgreSQL: no synchronous standby is connected, and `require_sync_standby` is set"
        )


def _stored(value: Any) -> Any:
    if isinstance(value, str):
        return to_text(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return [one if one is None else to_text(one) for one in value]
    return value


def _read(rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """Texts as they were given. Hardly any needs it."""
    if not any(isinstance(value, str) and ESCAPE in value for row in rows for value in row):
        return rows
    return [
        tuple(from_text(value) if isinstance(value, str) else value for value in row)
        for row in rows
    ]


HAS_STANDBY: Final = """SELECT EXISTS (
    SELECT 1 FROM pg_stat_replication
    WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')
)"""
