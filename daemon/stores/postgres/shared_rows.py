"""Rows that a shared warm queue has: locked under its epoch, for as long as they are there.

Such a row is leased like any other, but under the epoch, by no daemon, and far into the future:
`scheduled_at` is FAR_MS later than the time at which it was locked, so it also says since when.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from actors.model.keys import KeyRules
from actors.model.moves import ColdMove, guard
from actors.ports.tiers import ColdRow
from daemon.stores.cold import hand_over, leasing
from daemon.stores.cold.connection import Database as Steps
from daemon.stores.cold.rows import FAR_MS, unpack_bits
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.rows import NOW


class PostgresSharedRows:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(
        self,
        db: Database,
        steps: Steps,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        rules: Callable[[], KeyRules],
    ) -> None:
        self._db = db
        self._steps = steps
        self._daemon = daemon
        self._now_ms = now_ms
        self._rules = rules

    async def confirm(
        self, rows: Sequence[bytes], entering: Mapping[bytes, Sequence[bytes]]
    ) -> None:
        groups: dict[bytes | None, Sequence[bytes]] = {None: rows}
        for epoch, ids in entering.items():
            groups[epoch] = ids
        await self._steps.write(lambda con: hand_over.confirm(con, groups, self._rules()))

    async def acquire(
        self,
        queue: str,
        epoch: bytes,
        items_max: int,
        bytes_max: int,
        except_flows: frozenset[str],
    ) -> list[ColdRow]:
        wish = leasing.Wish(queue, epoch, items_max, bytes_max, FAR_MS, except_flows, cuts=True)
        return await leasing.acquire(self._steps, wish)

    async def left(self, epoch: bytes, rows: Sequence[bytes]) -> Mapping[bytes, int]:
        found = await self._db.read(lambda con: con.fetch(LEFT, list(rows), epoch))
        return {row: unpack_bits(bits) for row, bits in found}

    async def entered(self, queue: str, epoch: bytes, age_s: float, rows_max: int) -> list[bytes]:
        async def work(con: Connection) -> list[bytes]:
            age_ms = round(age_s * 1000)
            found = await con.fetch(ENTERED, self._now_ms(), queue, epoch, age_ms, rows_max)
            return [row for (row,) in found]

        return await self._db.read(work)

    async def end_epochs(self, queue: str, epoch: bytes, lease_s: float) -> int:
        async def work(con: Connection) -> int:
            lease_ms = round(lease_s * 1000)
            return len(await con.fetch(END_EPOCHS, self._now_ms(), queue, epoch, lease_ms))

        return await self._db.write(work, is_durable=False)


_ENTERED: Final = f"""state = 'COLD_QUEUED' AND NOT is_due AND queue = $2
    AND scheduled_at >= {FAR_MS}"""
LEFT: Final = f"""SELECT id, bits FROM runs
    WHERE id = ANY ($1) AND lock_uuid = $2 AND {guard(ColdMove.RELEASE)}"""
ENTERED: Final = f"""SELECT id FROM runs WHERE {_ENTERED} AND lock_uuid = $3
    AND scheduled_at <= {FAR_MS} + {NOW} - $4 ORDER BY scheduled_at LIMIT $5"""
END_EPOCHS: Final = f"""UPDATE runs SET scheduled_at = {NOW} + $4
    WHERE {_ENTERED} AND lock_uuid <> $3 RETURNING 1"""
