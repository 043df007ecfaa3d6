"""The table of unique keys in SQLite: who has one, and where that item is.

A key's row is found by its key, and by where its item is: its number is made of the number of a
body (`homes`) and a place in it. Outcomes are about places in bodies, so that keys are let go by a
range of numbers; and new keys are appended, but for the index of the keys themselves, which is as
narrow as can be: random keys touch most of its pages in every transaction. (With the item's id in
the table's key, and a second index for the places, it wrote three times as much.)

Nothing here decides (daemon/stores/cold/offers.py does, with actors/keys/arbiter.py). All keys of a
step are found, taken or released by one statement that takes them as one value: each row that a
statement steps over gives other threads the interpreter, and with a busy daemon a statement for
each key would wait for it each time. JSON cannot hold bytes, so keys are bound end to end as one
blob, and a number for each says where it lies (`pack_spans`).
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final

from actors.keys.arbiter import Known, item_refs
from actors.model.keys import Holder, ItemRef, Phase
from actors.model.slices import indexes, ranges
from daemon.stores.cold.books import Place
from daemon.stores.cold.connection import RunAgain
from daemon.stores.cold.keyed import (
    FORGOTTEN_MAX,
    Answer,
    Held,
    KeyedItem,
    KeyedRow,
    Moved,
    Released,
    Taking,
    phase_of,
    placed,
)
from daemon.stores.cold.rows import unpack_bits
from daemon.stores.cold.statement import Now
from forebay.ids import RUN_ID_BYTES
from forebay.limits import KEY_BYTES_MAX, RUN_ITEMS_MAX
from forebay.run import IDS

AT_ONCE: Final = 500
"""Bodies of one statement."""
OFFERED_MAX: Final = 32_768

_INDEX_BITS: Final = 12
_PLACE: Final = (1 << _INDEX_BITS) - 1
assert RUN_ITEMS_MAX <= 1 << _INDEX_BITS
assert KEY_BYTES_MAX < 1 << 8
assert RUN_ID_BYTES == 16


class SqliteKeys:
    """`KeyTable` for the steps."""

    offered_max = OFFERED_MAX

    def __init__(self, db: sqlite3.Connection, now: Now) -> None:
        self._db = db
        self._now = now

    async def find(
        self, queue: str, keys: Collection[bytes], *, with_rows: bool, locks: bool = True
    ) -> dict[bytes, Held]:
        if not keys:
            return {}
        # The neighbours of ordered keys are on the same page of the index.
        wanted = sorted(keys)
        spans = pack_spans(wanted, [0] * len(wanted))
        row = self._db.execute(SELECT_KEYS, (queue, b"".join(wanted), spans)).fetchone()
        found: dict[bytes, Held] = {}
        for which, n, run_id, item, until, body in json.loads(row[0]):
            phase: Phase = "waiting" if until is None else "done"
            body_id, place = bytes.fromhex(body), n & _PLACE
            ref = ItemRef(body_id, place) if item is None else ItemRef(bytes.fromhex(run_id), item)
            found[wanted[which]] = Known(
                Holder(ref, phase, until), KeyedItem(wanted[which], body_id, place, n)
            )
        return self._with_rows(queue, found) if with_rows and found else found

    async def take(self, queue: str, takings: Sequence[Taking]) -> None:
        taken: dict[bytes, int] = {}
        for one in takings:
            if not one.keys:
                continue
            base = self._home(one.body_id)
            if one.run.head.flags & IDS or one.places:
                refs = item_refs(one.run)
                places = {key: one.places.get(i, i) for key, i in sorted(one.keys.items())}
                items = {places[key]: refs[i] for key, i in one.keys.items()}
                self._take(queue, base, places, items)
            else:
                taken.update({key: base + index for key, index in one.keys.items()})
        self._take(queue, 0, {key: taken[key] for key in sorted(taken)})

    async def let_go(self, ended: Sequence[Released]) -> None:
        for one in ended:
            until = None if one.window_ms is None else self._now.wall + one.window_ms
            self._let_go(one.body_id, one.bits, until)

    async def follow(self, moved: Sequence[Moved]) -> None:
        bodies: dict[tuple[str, bytes], dict[bytes, Moved]] = {}
        for one in moved:
            bodies.setdefault((one.queue, one.body_id), {})[one.key] = one
        for (queue, body_id), items in bodies.items():
            held = await self.find(queue, items, with_rows=False)
            theirs = {
                key: one
                for key, one in held.items()
                if one.holder.item == items[key].item and one.holder.until_ms is None
            }
            if theirs:
                await self.release(queue, theirs.values())
                places = {key: items[key].place for key in theirs}
                refs = {items[key].place: items[key].item for key in theirs}
                self._take(queue, self._home(body_id), places, refs)

    async def release(self, queue: str, held: Collection[Held]) -> None:
        self._delete([one.where.entry for one in held])

    async def remember(self, answers: Sequence[Answer]) -> None:
        if not answers:
            return
        lengths = [len(one.outcomes) for one in answers]
        starts = accumulate(lengths[:-1], initial=1)
        spans = zip(starts, lengths, (one.fingerprint for one in answers), strict=True)
        ids = b"".join(one.run_id for one in answers)
        outcomes = b"".join(one.outcomes for one in answers)
        self._insert(REMEMBER, (ids, outcomes, json.dumps(list(spans))))

    async def forget(self) -> int:
        old = [n for (n,) in self._db.execute(SELECT_OLD, (self._now.wall, FORGOTTEN_MAX))]
        self._delete(old)
        return len(old)

    def _let_go(self, body_id: bytes, bits: int, until: int | None) -> None:
        """None: the keys are free at once."""
        home = self._db.execute(SELECT_HOME, (body_id,)).fetchone()
        if home is None:
            return
        base: int = home[0] << _INDEX_BITS
        stretches = list(ranges(bits))
        values: tuple[int | str, ...]
        if len(stretches) == 1:
            first, last = stretches[0]
            where, values = IN_STRETCH, (base + first, base + last)
        else:
            where, values = AT_PLACES, (json.dumps([base + index for index in indexes(bits)]),)
        if until is None:
            self._db.execute(f"DELETE FROM keys {where}", values)
            self._db.execute(DROP_HOME, home)
        else:
            self._db.execute(f"UPDATE keys SET until = ? {where}", (until, *values))

    def _home(self, body_id: bytes) -> int:
        """The number of the key of a body's first item; the body gets one if it has none."""
        made = self._db.execute(INSERT_HOME, (body_id,))
        if made.rowcount:
            number = made.lastrowid
        else:
            (number,) = self._db.execute(SELECT_HOME, (body_id,)).fetchone()
        assert number is not None
        return number << _INDEX_BITS

    def _take(
        self,
        queue: str,
        base: int,
        taken: Mapping[bytes, int],
        items: Mapping[int, ItemRef] | None = None,
    ) -> None:
        """These keys belong to the items at these numbers after `base` from now on. They are best
        given in order. `items`: which these are, where they are not their bodies' own; of one body
        only."""
        if not taken:
            return
        keys = list(taken)
        places = [taken[key] for key in keys]
        if items is not None:
            named = [items[place] for place in places]
            pairs = zip(named, places, strict=True)
            spans = pack_spans(keys, [ref.number << _INDEX_BITS | place for ref, place in pairs])
            runs = b"".join(ref.run_id for ref in named)
            self._insert(TAKE_NAMED, (queue, b"".join(keys), spans, base, runs))
            return
        first = min(places)
        if max(places) - first < 1 << 2 * _INDEX_BITS:
            spans = pack_spans(keys, [place - first for place in places])
            self._insert(TAKE, (queue, b"".join(keys), spans, base + first))
            return
        # Bodies of the same step, whose numbers are far apart: one of them was here before.
        for number in {place >> _INDEX_BITS for place in places}:
            part = {key: place for key, place in taken.items() if place >> _INDEX_BITS == number}
            self._take(queue, base, part)

    def _insert(self, sql: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(sql, values)
        except sqlite3.IntegrityError as error:
            raise RunAgain(f"a key is taken already: {error}") from error

    def _delete(self, ns: Sequence[int]) -> None:
        if ns:
            self._db.execute(DELETE_KEYS, (json.dumps(ns),))
            self._db.execute(DROP_HOMES, (json.dumps(list({n >> _INDEX_BITS for n in ns})),))

    def _with_rows(self, queue: str, found: dict[bytes, Held]) -> dict[bytes, Held]:
        alive = {one.where.body_id for one in found.values() if one.holder.until_ms is None}
        rows: dict[bytes, list[KeyedRow]] = {}
        for part in _parts(alive):
            value = self._db.execute(SELECT_ROWS.format(_marks(len(part))), part).fetchone()[0]
            for body_id, *columns in json.loads(value):
                rows.setdefault(bytes.fromhex(body_id), []).append(_row(queue, *columns))
        return {key: placed(held, rows.get(held.where.body_id, ())) for key, held in found.items()}


def pack_spans(keys: Sequence[bytes], numbers: Sequence[int]) -> str:
    """Where each key lies among all of them, its length, and a number of 24 bits, in one. There is
    at least one key."""
    lengths = list(map(len, keys))
    parts = zip(accumulate(lengths[:-1], initial=1), lengths, numbers, strict=True)
    return json.dumps([start << 32 | size << 24 | number for start, size, number in parts])


def _row(queue: str, *columns: Any) -> KeyedRow:
    n, bits, flow, action, write, state, is_locked, due_ms, attempt, size = columns
    return KeyedRow(
        n,
        unpack_bits(bytes.fromhex(bits)),
        Place(queue, flow, action),
        None if write is None else bytes.fromhex(write),
        phase_of(state, is_locked=bool(is_locked)),
        due_ms,
        attempt,
        size,
    )


def _parts(values: Collection[bytes]) -> Iterator[Sequence[bytes]]:
    rest = iter(values)
    while part := tuple(islice(rest, AT_ONCE)):
        yield part


def _marks(values: int) -> str:
    return "?" + ",?" * (values - 1)


_KEY: Final = "substr(?2, span.value >> 32, span.value >> 24 & 255)"
_NO_KEYS: Final = """NOT EXISTS (
        SELECT 1 FROM keys WHERE keys.n >= homes.number << 12 AND keys.n < homes.number + 1 << 12
    )"""
SELECT_KEYS: Final = f"""SELECT json_group_array(json_array(
        span.key, n, hex(run_id), item, until, hex(body_id)
    )) FROM json_each(?3) AS span
    CROSS JOIN keys ON queue = ?1 AND keys.key = {_KEY}
    CROSS JOIN homes ON homes.number = keys.n >> 12"""
TAKE: Final = f"""INSERT INTO keys (n, queue, key)
    SELECT ?4 + (span.value & 16777215), ?1, {_KEY} FROM json_each(?3) AS span"""
TAKE_NAMED: Final = f"""INSERT INTO keys (n, queue, key, run_id, item)
    SELECT ?4 + (span.value & 4095), ?1, {_KEY}, substr(?5, 16 * span.key + 1, 16),
        span.value >> 12 & 4095
    FROM json_each(?3) AS span"""
INSERT_HOME: Final = "INSERT INTO homes (body_id) VALUES (?) ON CONFLICT DO NOTHING"
SELECT_HOME: Final = "SELECT number FROM homes WHERE body_id = ?"
DROP_HOME: Final = f"DELETE FROM homes WHERE number = ? AND {_NO_KEYS}"
DROP_HOMES: Final = f"""DELETE FROM homes
    WHERE number IN (SELECT value FROM json_each(?)) AND {_NO_KEYS}"""
SELECT_ROWS: Final = """SELECT json_group_array(json_array(
        hex(body_id), n, hex(bits), flow, action,
        CASE WHEN write_id IS NULL THEN NULL ELSE hex(write_id) END, state,
        lock_uuid IS NOT NULL, due_ms, attempt, size
    )) FROM runs INDEXED BY runs_body WHERE state <> 'STORED' AND body_id IN ({})"""
IN_STRETCH: Final = "WHERE n >= ? AND n < ? AND until IS NULL"
AT_PLACES: Final = "WHERE n IN (SELECT value FROM json_each(?)) AND until IS NULL"
SELECT_OLD: Final = "SELECT n FROM keys INDEXED BY keys_until WHERE until <= ? LIMIT ?"
DELETE_KEYS: Final = "DELETE FROM keys WHERE n IN (SELECT value FROM json_each(?))"
REMEMBER: Final = """INSERT INTO offered (run_id, outcomes, fingerprint)
    SELECT substr(?1, 16 * span.key + 1, 16),
        substr(?2, json_extract(span.value, '$[0]'), json_extract(span.value, '$[1]')),
        json_extract(span.value, '$[2]')
    FROM json_each(?3) AS span"""
HAS_KEYS: Final = "EXISTS (SELECT 1 FROM homes WHERE homes.body_id = runs.body_id)"
"""Of a row of `runs`, or one that shares its body."""
