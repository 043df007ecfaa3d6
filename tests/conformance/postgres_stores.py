"""PostgreSQL for the suites: a schema of its own in the session's server, and a clock that stands.

To make a schema takes longer than most tests: one that a test has left is emptied and used again.

The server's clock is everybody's: it cannot be set by one of the hosts, and so `step` does nothing.
A process that is killed leaves what the server has committed; its transactions are rolled back.
"""

import itertools
from collections import defaultdict
from typing import Any

import asyncpg

from daemon.stores.bridge import Bridge
from daemon.stores.cold.dead import ColdDeadLetters
from daemon.stores.postgres.store import PostgresCold, PostgresSettings, ignore_wake
from tests.conformance.cold_stores import START_MS
from tests.servers.postgres import shared_server

TIMEOUT_S = 60.0
DAEMON = b"daemon of tests."

CLEAR = """DO $$ DECLARE name text; BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables
        WHERE schemaname = current_schema() AND tablename <> 'schema_version'
    LOOP EXECUTE format('DELETE FROM %I', name); END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema()
    LOOP PERFORM setval(quote_ident(name), 1, false); END LOOP;
END $$"""
"""TRUNCATE takes half a second: it makes new files for every table and every index."""

_schemas = itertools.count(1)
_empty: defaultdict[str, list[str]] = defaultdict(list)
"""Schemas that can be used again, by the URL of their server."""


class PostgresStores:
    def __init__(self, bridge: Bridge, url: str = "") -> None:
        self._bridge = bridge
        self._now_ms = START_MS
        self.url = url or shared_server().url()
        self.schema = _empty[self.url].pop() if _empty[self.url] else f"forebay_{next(_schemas)}"
        self.cold = self.make()

    @property
    def dead(self) -> ColdDeadLetters:
        return self.cold.dead_letters

    def now_ms(self) -> int:
        return self._now_ms

    def steady_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms

    def step(self, ms: int) -> None:
        pass

    async def reopen(self) -> None:
        await self.cold.close()
        self.cold = self.make()
        await self.cold.open()

    async def crash(self) -> None:
        await self.reopen()

    async def release_all(self) -> None:
        await self.cold.release_all()

    async def damage_body(self, run_id: bytes) -> None:
        await self.sql(
            "UPDATE bodies SET data = "
            "set_byte(data, length(data) - 2, get_byte(data, length(data) - 2) # 1) WHERE id = $1",
            run_id,
        )

    async def bodies(self) -> set[bytes]:
        return {row["id"] for row in await self.sql("SELECT id FROM bodies")}

    async def sql(self, statement: str, *values: object) -> list[Any]:
        """On a connection of its own, as somebody with a shell would."""

        async def work() -> list[Any]:
            con = await asyncpg.connect(
                self.url, server_settings={"search_path": self.schema}, statement_cache_size=0
            )
            try:
                return list(await con.fetch(statement, *values))
            finally:
                await con.close()

        return await self._bridge.run(work, TIMEOUT_S)

    async def drop(self) -> None:
        await self.cold.close()
        await self.sql(CLEAR)
        _empty[self.url].append(self.schema)

    def make(self, daemon: bytes = DAEMON, **given: Any) -> PostgresCold:
        """Another daemon's store, in the same schema."""
        on_wake = given.pop("on_wake", ignore_wake)
        settings = PostgresSettings(self.url, TIMEOUT_S, schema=self.schema, **given)
        return PostgresCold(settings, daemon, self._bridge, on_wake, now_ms=self.now_ms)
