"""Ticks of schedules: the marks, and what is installed and deleted with them.

One step for all schedules that are looked after at once. Ticks are items of keyed pushes (`offers`)
with a rule of their own.

The marks are locked first, in the order of their names: of daemons that look after the same
schedule at once, the second one finds that the mark has moved. A change that is repeated after a
lost answer finds the same, and changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
from daemon.stores.cold.books import Books
from daemon.stores.cold.connection import Connection, Database, RunAgain
from daemon.stores.cold.keys import void
from daemon.stores.cold.offers import offer
from daemon.stores.cold.statement import Statement
from forebay.keyed import KeyOutcome


class ColdTicks:
    """Made by the cold store, whose database it shares."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def marks(self) -> Marks:
        return await self._db.read(_marks)

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        is_new_work = any(change.offers for change in changes)
        return await self._db.write(lambda con: _change(con, changes), is_new_work=is_new_work)

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        return await self._db.read(lambda con: _phases(con, ticks))


async def _marks(con: Connection) -> Marks:
    rows = await con.fetch(SELECT_MARKS)
    return Marks(await con.now(), {name: TickMark(*rest) for name, *rest in rows})


async def _change(con: Connection, changes: Sequence[TickChange]) -> list[TickOutcome]:
    rows = await con.fetch(LOCK_MARKS, sorted({change.name for change in changes}))
    marks = {name: TickMark(*rest) for name, *rest in rows}
    valid = [change for change in changes if marks.get(change.name) == change.before]
    dropped = await _drop(con, valid)
    await _move_marks(con, valid, dropped)
    installed = await _install(con, valid)
    done = {
        change.name: TickOutcome(True, dropped[change.name], installed[change.name])
        for change in valid
    }
    return [done.get(change.name, TickOutcome(is_done=False)) for change in changes]


async def _drop(con: Connection, changes: Sequence[TickChange]) -> Counter[str]:
    """Deletes the ticks in the changes' spans that wait; how many of each schedule."""
    names: defaultdict[str, dict[bytes, str]] = defaultdict(dict)
    for change in changes:
        if change.before is not None and change.drop is not None:
            queue = change.before.queue
            span = key_span(change.name, change.before, change.drop)
            for (key,) in await con.fetch(SELECT_SPAN, queue, *span):
                names[queue][key] = change.name
    dropped = Counter[str]()
    books = Books()
    for queue, wanted in sorted(names.items()):
        held = await con.keys.find(queue, wanted, with_rows=True)
        waiting = [one for one in held.values() if one.holder.phase == "waiting"]
        await void(con, waiting, books)
        await con.keys.release(queue, waiting)
        dropped.update(wanted[one.where.key] for one in waiting)
    await con.record(books)
    return dropped


async def _move_marks(
    con: Connection, changes: Sequence[TickChange], dropped: Mapping[str, int]
) -> None:
    gone: list[str] = []
    moved: list[tuple[object, ...]] = []
    for change in changes:
        after = change.mark_after(dropped[change.name])
        if after is None:
            gone.append(change.name)
        elif change.before is not None:
            moved.append((change.name, *after))
        elif not await con.execute(INSERT_MARK, change.name, *after):
            # There was none to lock, and another daemon has made it meanwhile.
            raise RunAgain("a schedule's mark was made meanwhile")
    if gone:
        await con.execute(DELETE_MARKS, gone)
    await con.each(UPDATE_MARK, moved)


async def _install(con: Connection, changes: Sequence[TickChange]) -> Counter[str]:
    """How many ticks of each schedule are new."""
    offers = [(change.name, one) for change in changes for one in change.offers]
    installed = Counter[str]()
    if offers:
        answers = await offer(con, [one for _, one in offers], lambda _: TICK_RULE)
        for (name, _), outcomes in zip(offers, answers, strict=True):
            installed[name] += outcomes.count(KeyOutcome.CREATED)
    return installed


async def _phases(con: Connection, ticks: Sequence[Tick]) -> list[Phase | None]:
    found: dict[Tick, Phase] = {}
    for queue in sorted({tick.queue for tick in ticks}):
        wanted = [tick.key for tick in ticks if tick.queue == queue]
        held = await con.keys.find(queue, wanted, with_rows=True, locks=False)
        found |= {Tick(queue, key): one.holder.phase for key, one in held.items()}
    return [found.get(tick) for tick in ticks]


_COLUMNS: Final = ", ".join(TickMark._fields)
_VALUES: Final = ", ".join(f"${n}" for n in range(2, len(TickMark._fields) + 2))
SELECT_MARKS: Final = Statement(f"SELECT name, {_COLUMNS} FROM ticks")
LOCK_MARKS: Final = Statement(
    f"SELECT name, {_COLUMNS} FROM ticks WHERE name = ANY ($1) ORDER BY name FOR UPDATE"
)
INSERT_MARK: Final = Statement(f"""INSERT INTO ticks (name, {_COLUMNS}) VALUES ($1, {_VALUES})
    ON CONFLICT DO NOTHING""")
UPDATE_MARK: Final = Statement(f"UPDATE ticks SET ({_COLUMNS}) = ({_VALUES}) WHERE name = $1")
DELETE_MARKS: Final = Statement("DELETE FROM ticks WHERE name = ANY ($1)")
SELECT_SPAN: Final = Statement("SELECT key FROM keys WHERE queue = $1 AND key > $2 AND key <= $3")
