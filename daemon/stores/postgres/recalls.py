"""Recalls in PostgreSQL: a row a question, to the daemon that holds rows of a body.

Questions are few and short-lived: who asks removes them, and those of daemons that were killed
meanwhile. A wake is said behind each question and each answer (daemon/stores/postgres/wakes.py).
None of it need be durable.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from actors.keys.recall import RECALLED, Recall, RecallQuestion
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.rows import NOW
from daemon.stores.sqlite.rows import pack_bits, unpack_bits

OLD_MS: Final = 60_000
ASKED_MAX: Final = 256

TABLES: Final = (
    """CREATE TABLE recalls (
        n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        queue text NOT NULL,
        body_id bytea NOT NULL,
        bits bytea NOT NULL,
        holder bytea NOT NULL,
        asked_ms bigint NOT NULL,
        is_answered boolean NOT NULL DEFAULT false
    ) WITH (fillfactor = 50)""",
    "CREATE INDEX recalls_open ON recalls (holder, n) WHERE NOT is_answered",
)

ASK: Final = f"""INSERT INTO recalls (queue, body_id, bits, holder, asked_ms)
    SELECT $2, wanted.body_id, wanted.bits, held.holder, {NOW}
    FROM unnest($3::bytea[], $4::bytea[]) AS wanted (body_id, bits), LATERAL (
        SELECT DISTINCT holder FROM runs
        WHERE runs.body_id = wanted.body_id AND lock_uuid IS NOT NULL AND queue = $2
            AND holder <> $5 AND holder <> ALL ($6::bytea[])
    ) AS held RETURNING n, holder"""
UNANSWERED: Final = "SELECT n FROM recalls WHERE n = ANY ($1) AND NOT is_answered"
ASKED: Final = f"""SELECT n, queue, body_id, bits FROM recalls
    WHERE holder = $1 AND NOT is_answered ORDER BY n LIMIT {ASKED_MAX}"""
ANSWER: Final = "UPDATE recalls SET is_answered = true WHERE n = ANY ($1)"
FORGET: Final = f"""DELETE FROM recalls
    WHERE n = ANY ($2) OR asked_ms < {NOW} - {OLD_MS}"""


class PostgresRecalls:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(
        self,
        db: Database,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        notices: Callable[[set[str]], str | None],
    ) -> None:
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._notices = notices

    async def ask(
        self, queue: str, wanted: Mapping[bytes, int], silent: Collection[bytes]
    ) -> list[RecallQuestion]:
        async def work(con: Connection) -> list[RecallQuestion]:
            bits = [pack_bits(each) for each in wanted.values()]
            rows = await con.fetch(
                ASK, self._now_ms(), queue, list(wanted), bits, self._daemon, list(silent)
            )
            return [RecallQuestion(number, holder) for number, holder in rows]

        return await self._db.write(work, is_durable=False, after=self._tell_if)

    async def unanswered(self, numbers: Collection[int]) -> set[int]:
        rows = await self._db.read(lambda con: con.fetch(UNANSWERED, list(numbers)))
        return {number for (number,) in rows}

    async def asked(self) -> list[Recall]:
        rows = await self._db.read(lambda con: con.fetch(ASKED, self._daemon))
        return [
            Recall(number, queue, {body_id: unpack_bits(bits)})
            for number, queue, body_id, bits in rows
        ]

    async def answer(self, numbers: Collection[int]) -> None:
        await self._db.write(
            lambda con: con.execute(ANSWER, list(numbers)), is_durable=False, after=self._tell_if
        )

    async def forget(self, numbers: Collection[int]) -> None:
        await self._db.write(
            lambda con: con.execute(FORGET, self._now_ms(), list(numbers)), is_durable=False
        )

    def _tell_if(self, said: object) -> str | None:
        return self._notices({RECALLED}) if said else None
