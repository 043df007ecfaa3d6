"""The table of unique keys in SQLite: who has one, and where that item is.

A key's row is found by its key, and by where its item is: its number is made of the number of a
body (`homes`) and a place in it. Outcomes are about places in bodies, so that keys are let go by a
range of numbers; and new keys are appended, but for the index of the keys themselves, which is as
narrow as can be: random keys touch most of its pages in every transaction. (With the item's id in
the table's key, and a second index for the places, it wrote three times as much.)

Nothing here decides (daemon/stores/sqlite/offers.py does, with actors/model/keys.py). All keys of a
run are found, taken or let go by one statement that takes them as one value: each step of a
statement gives other threads the interpreter, and with a busy daemon a statement for each key would
wait for it each time. Keys are bytes, which JSON has no way to say: they are bound end to end as
one blob, and a number for each says where it lies (`pack_spans`).
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final

from actors.keys.arbiter import Known, item_refs
from actors.model.keys import Holder, ItemRef, Phase
from actors.model.slices import indexes, lowest_bit, ranges
from actors.ports.tiers import StoreUnavailable
from daemon.stores.cold.books import Place
from daemon.stores.cold.connection import RunAgain
from daemon.stores.cold.keyed import Held, KeyedItem, KeyedRow, Released, Taking, phase_of, placed
from daemon.stores.cold.rows import pack_bits, unpack_bits
from daemon.stores.cold.statement import Now
from daemon.stores.sqlite.books import Books
from forebay.errors import BadRun
from forebay.ids import unpack_item_id
from forebay.limits import KEY_BYTES_MAX, RUN_ITEMS_MAX
from forebay.run import IDS, KEYS, Run

AT_ONCE: Final = 500
"""Bodies of one statement."""
FORGOTTEN_MAX: Final = 2000
"""So many keys are forgotten in one transaction, which others wait for."""

_INDEX_BITS: Final = 12
_PLACE: Final = (1 << _INDEX_BITS) - 1
assert RUN_ITEMS_MAX <= 1 << _INDEX_BITS
assert KEY_BYTES_MAX < 1 << 8


class SqliteKeys:
    """`KeyTable` for the steps."""

    def __init__(self, db: sqlite3.Connection, now: Now) -> None:
        self._db = db
        self._now = now

    async def find(
        self, queue: str, keys: Collection[bytes], *, with_rows: bool, locks: bool = True
    ) -> dict[bytes, Held]:
        return find(self._db, queue, sorted(keys), with_rows=with_rows)

    async def take(self, queue: str, takings: Sequence[Taking]) -> None:
        # The neighbours of ordered keys are on the same page of the index.
        taken: dict[bytes, int] = {}
        for one in takings:
            if not one.keys:
                continue
            base = home(self._db, one.body_id)
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
            let_go(self._db, one.body_id, one.bits, until)

    async def follow(self, run: Run, bits: int) -> None:
        follow(self._db, run, bits)

    async def release(self, queue: str, held: Collection[Held]) -> None:
        release(self._db, held)

    async def forget(self) -> int:
        old = [n for (n,) in self._db.execute(SELECT_OLD, (self._now.wall, FORGOTTEN_MAX))]
        _delete(self._db, old)
        return len(old)

    def _take(
        self,
        queue: str,
        base: int,
        taken: Mapping[bytes, int],
        items: Mapping[int, ItemRef] | None = None,
    ) -> None:
        try:
            take(self._db, queue, base, taken, items)
        except KeyTaken as error:
            raise RunAgain(str(error)) from error


def find(
    db: sqlite3.Connection, queue: str, wanted: Sequence[bytes], *, with_rows: bool
) -> dict[bytes, Held]:
    """Those of the keys that have a row. Without rows, who is not done seems to wait."""
    if not wanted:
        return {}
    spans = pack_spans(wanted, [0] * len(wanted))
    rows = json.loads(db.execute(SELECT_KEYS, (queue, b"".join(wanted), spans)).fetchone()[0])
    found: dict[bytes, Held] = {}
    for which, n, run_id, item, until, body in rows:
        phase: Phase = "waiting" if until is None else "done"
        body_id, place = bytes.fromhex(body), n & _PLACE
        ref = ItemRef(body_id, place) if item is None else ItemRef(bytes.fromhex(run_id), item)
        found[wanted[which]] = Known(
            Holder(ref, phase, until), KeyedItem(wanted[which], body_id, place, n)
        )
    return _with_rows(db, queue, found) if with_rows and found else found


def home(db: sqlite3.Connection, body_id: bytes) -> int:
    """The number of the key of a body's first item; the body gets one if it has none."""
    db.execute("INSERT INTO homes (body_id) VALUES (?) ON CONFLICT DO NOTHING", (body_id,))
    number: int = db.execute(SELECT_HOME, (body_id,)).fetchone()[0]
    return number << _INDEX_BITS


class KeyTaken(StoreUnavailable):
    """A key that was to be taken is somebody's, or its place is. The transaction must not be
    committed."""


def take(
    db: sqlite3.Connection,
    queue: str,
    base: int,
    taken: Mapping[bytes, int],
    items: Mapping[int, ItemRef] | None = None,
) -> None:
    """These keys, which nobody has, belong to the items at these numbers after `base` from now on.
    They are best given in order: neighbours are on the same page of the index. `items`: which these
    are, where they are not their bodies' own; of one body only."""
    if not taken:
        return
    keys = list(taken)
    places = [taken[key] for key in keys]
    if items is not None:
        named = [items[place] for place in places]
        pairs = zip(named, places, strict=True)
        spans = pack_spans(keys, [ref.number << _INDEX_BITS | place for ref, place in pairs])
        runs = b"".join(ref.run_id for ref in named)
        _insert(db, TAKE_NAMED, (queue, b"".join(keys), spans, base, runs))
        return
    first = min(places)
    if max(places) - first < 1 << 2 * _INDEX_BITS:
        spans = pack_spans(keys, [place - first for place in places])
        _insert(db, TAKE, (queue, b"".join(keys), spans, base + first))
        return
    # Bodies of the same step, whose numbers are far apart: one of them was here before.
    for number in {place >> _INDEX_BITS for place in places}:
        part = {key: place for key, place in taken.items() if place >> _INDEX_BITS == number}
        take(db, queue, base, part)


def _insert(db: sqlite3.Connection, sql: str, values: tuple[object, ...]) -> None:
    try:
        db.execute(sql, values)
    except sqlite3.IntegrityError as error:
        raise KeyTaken(f"a key is taken already: {error}") from error


def pack_spans(keys: Sequence[bytes], numbers: Sequence[int]) -> str:
    """Where each key lies among all of them, its length, and a number of 24 bits, in one. There is
    at least one key."""
    lengths = list(map(len, keys))
    parts = zip(accumulate(lengths[:-1], initial=1), lengths, numbers, strict=True)
    return json.dumps([start << 32 | size << 24 | number for start, size, number in parts])


def let_go(db: sqlite3.Connection, body_id: bytes, bits: int, until: int | None) -> None:
    """Items have ended: their keys are free, at once or then."""
    home = db.execute(SELECT_HOME, (body_id,)).fetchone()
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
        db.execute(f"DELETE FROM keys {where}", values)
        db.execute(DROP_HOME, home)
    else:
        db.execute(f"UPDATE keys SET until = ? {where}", (until, *values))


def follow(db: sqlite3.Connection, run: Run, bits: int) -> None:
    """These items of a run have come from another body: their keys are where they are."""
    head = run.head
    if not (head.flags & KEYS and head.flags & IDS):
        return
    try:
        keys, ids = run.keys(), run.packed_ids()
        items = {keys[i]: (i, ItemRef(*unpack_item_id(ids[i]))) for i in indexes(bits) if keys[i]}
    except (BadRun, ValueError):
        # Whoever acquires it sets it aside; the keys stay taken.
        return
    held = find(db, head.queue, list(items), with_rows=False)
    theirs = {
        key: one
        for key, one in held.items()
        if one.holder.item == items[key][1] and one.holder.until_ms is None
    }
    if theirs:
        release(db, theirs.values())
        places = {key: items[key][0] for key in theirs}
        take(db, head.queue, home(db, head.run_id), places, dict(items[key] for key in theirs))


def void(db: sqlite3.Connection, replaced: Sequence[Held], books: Books) -> None:
    """Deletes items that wait; whoever replaces them takes their keys."""
    rows: dict[int, tuple[KeyedRow, bytes]] = {}
    gone: dict[int, int] = {}
    for held in replaced:
        where = held.where
        assert where.row is not None
        rows[where.row.n] = (where.row, where.body_id)
        gone[where.row.n] = gone.get(where.row.n, 0) | 1 << where.place
    ended: list[int] = []
    bodies: set[bytes] = set()
    rests: list[tuple[bytes, int, int, int]] = []
    for n, (row, body_id) in rows.items():
        rest, items = row.bits & ~gone[n], gone[n].bit_count()
        if rest:
            rests.append((pack_bits(rest), rest.bit_count(), lowest_bit(rest), n))
        else:
            ended.append(n)
            bodies.add(body_id)
        books.leave(row.place, items, rows_gone=int(not rest))
        books.delete(row.place.queue, items, row.write)
    db.executemany(SHRINK, rests)
    if ended:
        db.execute(DELETE_ROWS, (json.dumps(ended),))
    for part in _parts(bodies):
        db.execute(DROP_BODIES.format(_marks(len(part))), part)


def release(db: sqlite3.Connection, held: Collection[Held]) -> None:
    """Their keys are nobody's."""
    _delete(db, [one.where.entry for one in held])


def _delete(db: sqlite3.Connection, ns: Sequence[int]) -> None:
    if ns:
        db.execute(DELETE_KEYS, (json.dumps(ns),))
        db.execute(DROP_HOMES, (json.dumps(list({n >> _INDEX_BITS for n in ns})),))


def _with_rows(db: sqlite3.Connection, queue: str, found: dict[bytes, Held]) -> dict[bytes, Held]:
    alive = {one.where.body_id for one in found.values() if one.holder.until_ms is None}
    rows: dict[bytes, list[KeyedRow]] = {}
    for part in _parts(alive):
        value = db.execute(SELECT_ROWS.format(_marks(len(part))), part).fetchone()[0]
        for body_id, *columns in json.loads(value):
            rows.setdefault(bytes.fromhex(body_id), []).append(_row(queue, *columns))
    return {key: placed(held, rows.get(held.where.body_id, ())) for key, held in found.items()}


def _row(queue: str, *columns: Any) -> KeyedRow:
    n, bits, flow, action, write, state, is_locked, due_ms, attempt = columns
    return KeyedRow(
        n,
        unpack_bits(bytes.fromhex(bits)),
        Place(queue, flow, action),
        None if write is None else bytes.fromhex(write),
        phase_of(state, is_locked=bool(is_locked)),
        due_ms,
        attempt,
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
SELECT_HOME: Final = "SELECT number FROM homes WHERE body_id = ?"
DROP_HOME: Final = f"DELETE FROM homes WHERE number = ? AND {_NO_KEYS}"
DROP_HOMES: Final = f"""DELETE FROM homes
    WHERE number IN (SELECT value FROM json_each(?)) AND {_NO_KEYS}"""
SELECT_ROWS: Final = """SELECT json_group_array(json_array(
        hex(body_id), n, hex(bits), flow, action,
        CASE WHEN write_id IS NULL THEN NULL ELSE hex(write_id) END, state,
        lock_uuid IS NOT NULL, due_ms, attempt
    )) FROM runs INDEXED BY runs_body WHERE state <> 'STORED' AND body_id IN ({})"""
SHRINK: Final = "UPDATE runs SET bits = ?, count = ?, first_item = ? WHERE n = ?"
DELETE_ROWS: Final = "DELETE FROM runs WHERE n IN (SELECT value FROM json_each(?))"
DROP_BODIES: Final = """DELETE FROM bodies WHERE id IN ({})
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.body_id = bodies.id)
    AND NOT EXISTS (SELECT 1 FROM history WHERE history.body_id = bodies.id)"""
IN_STRETCH: Final = "WHERE n >= ? AND n < ? AND until IS NULL"
AT_PLACES: Final = "WHERE n IN (SELECT value FROM json_each(?)) AND until IS NULL"
SELECT_OLD: Final = "SELECT n FROM keys INDEXED BY keys_until WHERE until <= ? LIMIT ?"
DELETE_KEYS: Final = "DELETE FROM keys WHERE n IN (SELECT value FROM json_each(?))"
HAS_KEYS: Final = "EXISTS (SELECT 1 FROM homes WHERE homes.body_id = runs.body_id)"
"""Of a row of `runs`, or one that shares its body."""
