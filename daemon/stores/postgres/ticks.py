"""Ticks of schedules in PostgreSQL: the marks, and what is installed and deleted with them.

As in daemon/stores/sqlite/ticks.py. The marks are locked first, in the order of their names: of
daemons that look after the same schedule at once the second one finds that the mark has moved.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from actors.model.keys import Phase
from actors.ports.ticks import (
    TICK_RULE,
    Marks,
    Tick,
    TickChange,
    TickMark,
    TickOutcome,
    key_span,
)
from daemon.stores.postgres import keys, offers
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.errors import Again
from forebay.keyed import KeyOutcome


class PostgresTicks:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(
        self,
        db: Database,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        notices: Callable[[Iterable[str]], str | None],
    ) -> None:
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._notices = notices

    async def marks(self) -> Marks:
        async def work(con: Connection) -> Marks:
            rows = await con.fetch(SELECT_MARKS)
            now_ms = await keys.now(con, self._now_ms())
            return Marks(now_ms, {name: TickMark(*rest) for name, *rest in rows})

        return await self._db.read(work)

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        async def work(con: Connection) -> list[TickOutcome]:
            names = sorted({change.name for change in changes})
            rows = await con.fetch(LOCK_MARKS, names)
            marks = {name: TickMark(*rest) for name, *rest in rows}
            done = {
                change.name: await self._change_one(con, change, marks.get(change.name))
                for change in sorted(changes, key=lambda change: change.name)
            }
            return [done[change.name] for change in changes]

        queues = {change.after.queue for change in changes if change.after and change.offers}
        # Repeated after a lost answer it finds the mark moved, and changes nothing.
        return await self._db.write(work, after=lambda _: self._notices(queues))

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        async def work(con: Connection) -> list[Phase | None]:
            found: dict[Tick, Phase] = {}
            for queue in sorted({tick.queue for tick in ticks}):
                wanted = [tick.key for tick in ticks if tick.queue == queue]
                held = await keys.find(con, queue, wanted, with_rows=True, locks=False)
                found |= {Tick(queue, key): one.holder.phase for key, one in held.items()}
            return [found.get(tick) for tick in ticks]

        return await self._db.read(work)

    async def _change_one(
        self, con: Connection, change: TickChange, found: TickMark | None
    ) -> TickOutcome:
        if found != change.before:
            return TickOutcome(is_done=False)
        dropped = installed = 0
        if change.before is not None and change.drop is not None:
            first, last = key_span(change.name, change.before, change.drop)
            dropped = await self._drop(con, change.before.queue, first, last)
        after = change.mark_after(dropped)
        if after is None:
            await con.execute(DELETE_MARK, change.name)
        elif found is None:
            # Whoever had none to lock may have company.
            done = await con.execute(INSERT_MARK, change.name, *after)
            if done != "INSERT 0 1":
                raise Again("a mark was made meanwhile", is_lost=False, is_unknown=False)
        else:
            await con.execute(UPDATE_MARK, change.name, *after)
        if change.offers:
            answered = await offers.offer(
                con, change.offers, lambda _: TICK_RULE, self._daemon, self._now_ms()
            )
            installed = sum(each.count(KeyOutcome.CREATED) for each in answered.outcomes)
        return TickOutcome(True, dropped, installed)

    async def _drop(self, con: Connection, queue: str, first: bytes, last: bytes) -> int:
        wanted = [key for (key,) in await con.fetch(SELECT_SPAN, queue, first, last)]
        held = await keys.find(con, queue, wanted, with_rows=True)
        waiting = [one for one in held.values() if one.holder.phase == "waiting"]
        if waiting:
            books = SharedBooks()
            await keys.void(con, waiting, books)
            await books.record(con, self._daemon)
            await keys.release(con, queue, waiting)
        return len(waiting)


_COLUMNS: Final = ", ".join(TickMark._fields)
_VALUES: Final = ", ".join(f"${n}" for n in range(2, len(TickMark._fields) + 2))
SELECT_MARKS: Final = f"SELECT name, {_COLUMNS} FROM ticks"
LOCK_MARKS: Final = f"{SELECT_MARKS} WHERE name = ANY ($1) ORDER BY name FOR UPDATE"
INSERT_MARK: Final = f"""INSERT INTO ticks (name, {_COLUMNS}) VALUES ($1, {_VALUES})
    ON CONFLICT DO NOTHING"""
UPDATE_MARK: Final = f"UPDATE ticks SET ({_COLUMNS}) = ({_VALUES}) WHERE name = $1"
DELETE_MARK: Final = "DELETE FROM ticks WHERE name = $1"
SELECT_SPAN: Final = "SELECT key FROM keys WHERE queue = $1 AND key > $2 AND key <= $3"
