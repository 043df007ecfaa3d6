"""Runs of keyed queues in PostgreSQL: decided on, stored and remembered, many in one transaction.

As in daemon/stores/sqlite/offers.py: a run that comes here first is stored with those of its items
that got their keys, and what was answered is remembered; one that was staged is decided on when it
is confirmed. Daemons that want the same keys at once take turns, and see each other.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from actors.keys.arbiter import Arbiter, Decided, item_refs, key_places
from actors.model.keys import KeyRule, KeyRules, Offer
from actors.model.slices import indexes, item_bits
from actors.ports.tiers import NewRow
from actors.spooler.intake import fingerprint
from daemon.stores.cold.books import Place
from daemon.stores.cold.history import Cutter
from daemon.stores.cold.keyed import Held, KeyedItem
from daemon.stores.cold.repeats import Repeats
from daemon.stores.cold.rows import BadRow, Unpacked, content_of, place_of, unpack_bits
from daemon.stores.postgres import keys as table
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.errors import Again
from daemon.stores.postgres.keys import KeyTaken, Taken
from daemon.stores.postgres.rows import drop_bodies, insert_rows, read_bodies
from forebay.errors import BadRun
from forebay.ids import new_run_id
from forebay.keyed import count_outcomes
from forebay.run import Run

_Decided = Decided[KeyedItem]


class Waiting(NamedTuple):
    """A row that was stored and is being confirmed."""

    n: int
    body_id: bytes
    packed: bytes
    place: Place
    write: bytes


class Answered(NamedTuple):
    outcomes: list[bytes]
    due: set[str]
    """Queues that have something new."""


class _Admitted(NamedTuple):
    row: Waiting
    bits: int
    decided: _Decided


async def offer(
    con: Connection,
    offers: Sequence[Offer],
    rules: KeyRules,
    daemon: bytes,
    now_ms: int | None,
    repeats: Repeats | None = None,
) -> Answered:
    """Without `repeats`, all keys are looked for before they are taken."""
    repeats = repeats or Repeats(are_expected=True)
    books, woken = SharedBooks(), set[str]()
    answers, contents = await _known(con, [one.run.head.run_id for one in offers])
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
    for queue, ours in sorted(queues.items()):
        if ours:
            offered = list(ours.values())
            decided = await _decide(con, queue, offered, rules(queue), now_ms, repeats)
            try:
                await _carry_out(con, queue, decided, daemon, books, now_ms)
            except KeyTaken:
                # Of all queues: it must not be taken again for each of them.
                for each_queue in queues:
                    repeats.found(each_queue, 1)
                raise
            await _remember(con, decided, contents)
            answers |= {each.run.head.run_id: each.outcomes for each in decided}
            woken.add(queue)
    await books.record(con, daemon)
    wide = [
        _widen(answers[head.run_id], head.count) if contents[head.run_id] == content else b""
        for head, content in zip((one.run.head for one in offers), sums, strict=True)
    ]
    return Answered(wide, woken)


async def admit(
    con: Connection,
    queue: str,
    rows: Sequence[Waiting],
    rule: KeyRule,
    books: SharedBooks,
    now_ms: int | None,
) -> None:
    """Decides on rows that have just been made visible, and counted as held."""
    bodies = await read_bodies(con, (row.body_id for row in rows))
    readable: list[tuple[Waiting, Run, int]] = []
    wanted: set[bytes] = set()
    for row in rows:
        try:
            run, bits = Run(*bodies.get(row.body_id)), unpack_bits(row.packed)
            wanted.update(key_places(run.keys(), bits))
            item_refs(run)
        except (BadRow, BadRun):
            # Whoever acquires it sets it aside.
            continue
        readable.append((row, run, bits))
    known = await table.find(con, queue, wanted, with_rows=rule.policy == "replace")
    arbiter = Arbiter(rule, await table.now(con, now_ms), known)
    admitted = [_Admitted(row, bits, arbiter.decide(run, bits)) for row, run, bits in readable]
    await table.void(con, [gone for one in admitted for gone in one.decided.replaced], books)
    await _leave_out(con, admitted, books)
    await table.release(con, queue, [gone for one in admitted for gone in one.decided.former])
    taken = Taken()
    for one in admitted:
        taken.add(one.decided.run, one.decided.keys, one.row.body_id, {})
    await table.take(con, queue, taken)


async def _leave_out(con: Connection, admitted: Sequence[_Admitted], books: SharedBooks) -> None:
    """Items that lost are deleted, with their rows where none is left."""
    rests: dict[int, int] = {}
    gone: list[Waiting] = []
    for one in admitted:
        won = one.decided.won
        lost = (one.bits & ~won).bit_count()
        if lost and won:
            rests[one.row.n] = won
        elif lost:
            gone.append(one.row)
        books.leave(one.row.place, lost, rows_gone=int(not won))
        books.delete(one.row.place.queue, lost, one.row.write)
        _, *counts = count_outcomes(one.decided.outcomes)
        books.decide(one.row.write, *counts)
    await table.shrink(con, rests)
    if gone:
        await con.execute("DELETE FROM runs WHERE n = ANY ($1)", [row.n for row in gone])
        await drop_bodies(con, (row.body_id for row in gone))


async def _decide(
    con: Connection,
    queue: str,
    offers: Sequence[Offer],
    rule: KeyRule,
    now_ms: int | None,
    repeats: Repeats,
) -> list[_Decided]:
    is_exact = rule.policy == "replace" or any(one.only_if is not None for one in offers)
    known: Mapping[bytes, Held] = {}
    if is_exact or repeats.are_likely(queue):
        wanted = set().union(*(one.run.keys() for one in offers)) - {b""}
        known = await table.find(con, queue, wanted, with_rows=is_exact)
        repeats.found(queue, len(known))
    # Where nobody has one of the keys the time does not matter.
    arbiter = Arbiter(rule, await table.now(con, now_ms) if known else 0, known)
    return [
        arbiter.decide(one.run, item_bits(0, one.run.head.count), one.only_if) for one in offers
    ]


async def _carry_out(
    con: Connection,
    queue: str,
    decided: Sequence[_Decided],
    daemon: bytes,
    books: SharedBooks,
    now_ms: int | None,
) -> None:
    await table.void(con, [gone for each in decided for gone in each.replaced], books)
    await table.release(con, queue, [gone for each in decided for gone in each.former])
    rows: list[NewRow] = []
    taken = Taken()
    cutter = Cutter()
    for each in decided:
        books.pass_by(queue, each.replaced_here.bit_count())
        if not each.won:
            # All of it may have been replaced again in the same step.
            continue
        head, data, bits = cutter.part(each.run.head, bytes(each.run.data), each.won)
        # Of a run that was forgotten, other items may still be here under its id.
        rows.append(NewRow(new_run_id(), head, data, bits, due_ms=head.due_ms))
        books.accept(place_of(head), bits.bit_count())
        is_cut = head.run_id != each.run.head.run_id
        places = {index: place for place, index in enumerate(indexes(each.won))} if is_cut else {}
        taken.add(each.run, each.keys, head.run_id, places)
    await _insert(con, rows, daemon, now_ms)
    await table.take(con, queue, taken)


async def _insert(
    con: Connection, rows: Sequence[NewRow], daemon: bytes, now_ms: int | None
) -> None:
    if rows:
        await insert_rows(con, rows, daemon, now_ms, Unpacked(), is_stored=False)


async def _known(
    con: Connection, run_ids: list[bytes]
) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
    """What was answered to these runs before, and fingerprints of runs that have these ids."""
    answers: dict[bytes, bytes] = {}
    contents: dict[bytes, int] = {}
    for run_id, data, outcomes, content in await con.fetch(SELECT_KNOWN, run_ids):
        if data is not None:
            contents.setdefault(run_id, content_of(data))
            continue
        answers[run_id] = outcomes
        if content is not None:
            contents[run_id] = content
    return answers, contents


async def _remember(
    con: Connection, decided: Sequence[_Decided], contents: Mapping[bytes, int]
) -> None:
    done = await con.execute(
        REMEMBER,
        [each.run.head.run_id for each in decided],
        [_narrow(each.outcomes) for each in decided],
        [contents[each.run.head.run_id] for each in decided],
    )
    if int(done.rpartition(" ")[2]) != len(decided):
        raise Again("a run was offered twice at once", is_lost=False, is_unknown=False)


def _narrow(outcomes: bytes) -> bytes:
    """One byte where all items had the same outcome, as most have."""
    return outcomes[:1] if outcomes == outcomes[:1] * len(outcomes) else outcomes


def _widen(outcomes: bytes, items: int) -> bytes:
    return outcomes * items if len(outcomes) == 1 else outcomes


SELECT_KNOWN: Final = """SELECT run_id, NULL AS data, outcomes, fingerprint FROM offered
    WHERE run_id = ANY ($1)
    UNION ALL SELECT id, data, NULL, NULL FROM bodies WHERE id = ANY ($1)"""
REMEMBER: Final = """INSERT INTO offered (run_id, outcomes, fingerprint)
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
        AS given (run_id, outcomes, fingerprint)
    ORDER BY run_id ON CONFLICT DO NOTHING"""
