"""Runs of keyed queues in SQLite: decided on, stored and remembered, many in one transaction.

A run that comes here first (`offer`) is stored with those of its items that got their keys, and
what was answered is remembered, so that the same run gets the same answer again (another run
under its id gets none): after a lost
connection, after a crash, and also when its items are long delivered. The last `OFFERED_MAX` runs
are remembered. A run that was staged is decided on when it is confirmed (`admit`): what loses is
counted as taken, and deleted at once.

All keys of a transaction are looked up by one statement for each queue, where some of them may be
taken (daemon/stores/cold/repeats.py), and written by another;
each run costs a few more, for its row and its body. Where most items of a large run lose, the
others are cut out into a run of their own, in which they keep their ids: a stream of repeated keys
must not fill the disk with what was ignored.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from actors.keys.arbiter import Arbiter, Decided, item_refs, key_places
from actors.model.keys import KeyRule, KeyRules, Offer
from actors.model.slices import indexes, item_bits, lowest_bit
from actors.ports.tiers import NewRow
from actors.spooler.intake import fingerprint
from daemon.stores.cold.books import Place
from daemon.stores.cold.history import Cutter
from daemon.stores.cold.keyed import Held, KeyedItem
from daemon.stores.cold.repeats import Repeats
from daemon.stores.cold.rows import (
    QUEUED,
    BadRow,
    Unpacked,
    content_of,
    pack_bits,
    place_of,
    unpack_bits,
)
from daemon.stores.cold.statement import padded
from daemon.stores.sqlite import keys as table
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.keys import SHRINK, KeyTaken
from daemon.stores.sqlite.rows import bodies_sql, delete_row, drop_body, insert_row, read_body
from forebay.errors import BadRun
from forebay.ids import new_run_id
from forebay.keyed import count_outcomes
from forebay.run import IDS, Run

OFFERED_MAX: Final = 32_768

_Decided = Decided[KeyedItem]


class _Stored(NamedTuple):
    """Where the items of a run are that won."""

    decided: _Decided
    body_id: bytes
    places: dict[int, int] | None
    """By their indexes; None: they are the same."""


class Waiting(NamedTuple):
    """A row that was stored and is being confirmed."""

    n: int
    body_id: bytes
    packed: bytes
    place: Place
    write: bytes


def offer(
    db: sqlite3.Connection,
    offers: Sequence[Offer],
    rules: KeyRules,
    now: int,
    repeats: Repeats | None = None,
) -> list[bytes]:
    """Without `repeats`, all keys are looked for before they are taken. With them, KeyTaken may
    come: then it is to be taken again, in another transaction."""
    repeats = repeats or Repeats(are_expected=True)
    books = Books()
    answers, contents = _known(db, [one.run.head.run_id for one in offers])
    sums = [fingerprint(one.run.head, one.run.data) for one in offers]
    accepted = [
        one
        for one, content in zip(offers, sums, strict=True)
        if contents.setdefault(one.run.head.run_id, content) == content
    ]
    queues: dict[str, dict[bytes, Offer]] = {}
    for one in accepted:
        head = one.run.head
        ours = queues.setdefault(head.queue, {})
        if head.run_id in answers or head.run_id in ours:
            books.repeat(head.queue, head.count)
        else:
            ours[head.run_id] = one
    for queue, ours in queues.items():
        if ours:
            offered = list(ours.values())
            decided, keys = _decide(db, queue, offered, rules(queue), now, repeats)
            try:
                _carry_out(db, queue, decided, keys, now, books)
            except KeyTaken:
                # Of all queues: it must not be taken again for each of them.
                for each_queue in queues:
                    repeats.found(each_queue, 1)
                raise
            answers |= {each.run.head.run_id: each.outcomes for each in decided}
            db.executemany(
                REMEMBER,
                [
                    (run_id := each.run.head.run_id, narrow(each.outcomes), contents[run_id])
                    for each in decided
                ],
            )
    books.write(db)
    db.execute(FORGET_OFFERED, (OFFERED_MAX,))
    return [
        widen(answers[head.run_id], head.count) if contents[head.run_id] == content else b""
        for head, content in zip((one.run.head for one in offers), sums, strict=True)
    ]


def admit(db: sqlite3.Connection, row: Waiting, rule: KeyRule, now: int, books: Books) -> None:
    """Decides on a row that has just been made visible, and counted as held."""
    try:
        run = Run(*read_body(db, row.body_id))
        bits = unpack_bits(row.packed)
        wanted = sorted(key_places(run.keys(), bits))
        known = table.find(db, row.place.queue, wanted, with_rows=rule.policy == "replace")
        decided = Arbiter(rule, now, known).decide(run, bits)
        items = dict(enumerate(item_refs(run))) if run.head.flags & IDS else None
    except (BadRow, BadRun):
        # Whoever acquires it sets it aside.
        return
    table.void(db, decided.replaced, books)
    lost, won = bits & ~decided.won, decided.won
    if lost and won:
        db.execute(SHRINK, (pack_bits(won), won.bit_count(), lowest_bit(won), row.n))
    elif lost:
        delete_row(db, row.n)
        drop_body(db, row.body_id)
    books.leave(row.place, lost.bit_count(), rows_gone=int(not won))
    books.delete(row.place.queue, lost.bit_count(), row.write)
    _, *counts = count_outcomes(decided.outcomes)
    books.decide(row.write, *counts)
    table.release(db, decided.former)
    base = table.home(db, row.body_id) if decided.keys else 0
    keys = {key: decided.keys[key] for key in wanted if key in decided.keys}
    table.take(db, row.place.queue, base, keys, items)


def _decide(
    db: sqlite3.Connection,
    queue: str,
    offers: Sequence[Offer],
    rule: KeyRule,
    now: int,
    repeats: Repeats,
) -> tuple[list[_Decided], Sequence[bytes]]:
    """What becomes of each run; and the keys that they name, in order."""
    named: set[bytes] = set()
    for one in offers:
        named.update(one.run.keys())
    named.discard(b"")
    wanted = sorted(named)
    is_exact = rule.policy == "replace" or any(one.only_if is not None for one in offers)
    known: Mapping[bytes, Held] = {}
    if is_exact or repeats.are_likely(queue):
        known = table.find(db, queue, wanted, with_rows=is_exact)
        repeats.found(queue, len(known))
    arbiter = Arbiter(rule, now, known)
    decided = [
        arbiter.decide(one.run, item_bits(0, one.run.head.count), one.only_if) for one in offers
    ]
    return decided, wanted


def _carry_out(
    db: sqlite3.Connection,
    queue: str,
    decided: Sequence[_Decided],
    ordered: Sequence[bytes],
    now: int,
    books: Books,
) -> None:
    table.void(db, [gone for each in decided for gone in each.replaced], books)
    table.release(db, [gone for each in decided for gone in each.former])
    runs, cutter = Unpacked(), Cutter()
    taken: dict[bytes, int] = {}
    for each in decided:
        # Of the same step, all of it may have been replaced again.
        stored = _store(db, each, now, books, runs, cutter) if each.won else None
        if stored is None or not each.keys:
            continue
        base, keys = table.home(db, stored.body_id), each.keys
        if stored.places is None:
            taken.update({key: base + index for key, index in keys.items()})
        else:
            refs, places = item_refs(each.run), stored.places
            items = {places[index]: refs[index] for index in keys.values()}
            table.take(db, queue, base, {key: places[keys[key]] for key in keys}, items)
    table.take(db, queue, 0, {key: taken[key] for key in ordered if key in taken})
    for each in decided:
        if each.replaced_here and not each.won:
            books.pass_by(queue, each.replaced_here.bit_count())


def _store(
    db: sqlite3.Connection,
    decided: _Decided,
    now: int,
    books: Books,
    runs: Unpacked,
    cutter: Cutter,
) -> _Stored:
    run, won = decided.run, decided.won
    head, data, bits = cutter.part(run.head, bytes(run.data), won)
    insert_row(db, NewRow(new_run_id(), head, data, bits, due_ms=head.due_ms), QUEUED, now, runs)
    books.accept(place_of(head), bits.bit_count())
    books.pass_by(head.queue, decided.replaced_here.bit_count())
    places: dict[int, int] | None = None
    if head.run_id != run.head.run_id:
        places = {index: place for place, index in enumerate(indexes(won))}
    elif head.flags & IDS:
        places = {index: index for index in decided.keys.values()}
    return _Stored(decided, head.run_id, places)


def _known(
    db: sqlite3.Connection, run_ids: list[bytes]
) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
    """What was answered to these runs before, and fingerprints of runs that have these ids."""
    ids = padded(run_ids)
    contents = {
        body_id: content_of(data) for body_id, data in db.execute(bodies_sql(len(ids)), ids)
    }
    answers: dict[bytes, bytes] = {}
    sql = f"SELECT {_OFFERED} FROM offered WHERE run_id IN ({', '.join('?' * len(ids))})"
    for run_id, outcomes, content in db.execute(sql, ids):
        answers[run_id] = outcomes
        if content is not None:
            contents[run_id] = content
    return answers, contents


def narrow(outcomes: bytes) -> bytes:
    """One byte where all items had the same outcome, as most have."""
    return outcomes[:1] if outcomes == outcomes[:1] * len(outcomes) else outcomes


def widen(outcomes: bytes, items: int) -> bytes:
    return outcomes * items if len(outcomes) == 1 else outcomes


_OFFERED: Final = "run_id, outcomes, fingerprint"
REMEMBER: Final = f"INSERT INTO offered ({_OFFERED}) VALUES (?, ?, ?)"
FORGET_OFFERED: Final = """DELETE FROM offered
    WHERE n <= (SELECT coalesce(max(n), 0) FROM offered) - ?"""
