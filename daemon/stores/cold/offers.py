"""Runs of keyed queues: decided on, stored and remembered, many in one step.

A run that comes here first (`offer`) is stored with those of its items that got their keys. The
answer is remembered, so that the same run gets the same answer again: after a lost connection,
after a crash, and also when its items are long delivered. Another run under its id gets none. Only
the latest runs are remembered (`KeyTable.offered_max`).

A run that was staged is decided on when it is confirmed (`admit`): items that lose are counted as
taken, and deleted at once.

One statement looks for all keys of a queue, if some of them may be taken (`repeats`), and one takes
them. Daemons that want the same keys at once take turns, and see each other. Where most items of a
large run lose, the others are cut out into a run of their own, in which they keep their ids: a
stream of repeated keys must not fill the disk with what was ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from actors.keys.arbiter import (
    Arbiter,
    Contents,
    Decided,
    Known,
    item_refs,
    key_places,
    may_be_same,
)
from actors.model.keys import KeyRule, KeyRules, Offer
from actors.model.slices import indexes, item_bits
from actors.ports.tiers import NewRow
from actors.spooler.intake import fingerprint
from daemon.stores.cold.books import Books, Place
from daemon.stores.cold.connection import Connection, RunAgain
from daemon.stores.cold.history import Cutter
from daemon.stores.cold.keyed import FORGOTTEN_MAX, Answer, Held, KeyedItem, Taking
from daemon.stores.cold.keys import void
from daemon.stores.cold.repeats import Repeats
from daemon.stores.cold.rows import BadRow, Unpacked, fingerprint_of, place_of
from daemon.stores.cold.statement import Statement
from forebay.errors import BadRun
from forebay.ids import new_run_id
from forebay.keyed import count_outcomes
from forebay.run import Run

READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bodies that are read at once, to compare what waits with what is offered."""

_Decided = Decided[KeyedItem]


class Arrival(NamedTuple):
    """A row that has just been confirmed."""

    n: int
    body_id: bytes
    bits: int
    place: Place
    write: bytes


class _Admitted(NamedTuple):
    row: Arrival
    decided: _Decided


async def offer(
    con: Connection, offers: Sequence[Offer], rules: KeyRules, repeats: Repeats | None = None
) -> list[bytes]:
    """The outcomes of each run. Without `repeats`, all keys are looked for before they are
    taken."""
    repeats = repeats or Repeats(are_expected=True)
    books = Books()
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
        if not ours:
            continue
        decided = await _decide(con, queue, list(ours.values()), rules(queue), repeats)
        try:
            await _carry_out(con, queue, decided, books)
        except RunAgain:
            # Of all queues: the step must not be run again for each of them.
            for each_queue in queues:
                repeats.found(each_queue, 1)
            raise
        answers |= {each.run.head.run_id: each.outcomes for each in decided}
        if any(each.won for each in decided):
            con.wake(queue)
    new = [run_id for ours in queues.values() for run_id in ours]
    await con.keys.remember([Answer(id_, _narrow(answers[id_]), contents[id_]) for id_ in new])
    await con.record(books)
    return [
        _widen(answers[head.run_id], head.count) if contents[head.run_id] == content else b""
        for head, content in zip((one.run.head for one in offers), sums, strict=True)
    ]


async def admit(
    con: Connection, queue: str, rows: Sequence[Arrival], rule: KeyRule, books: Books
) -> None:
    """Decides on rows that are visible and counted as held since this step."""
    bodies = await con.rows.read_bodies(row.body_id for row in rows)
    readable: list[tuple[Arrival, Run]] = []
    wanted: set[bytes] = set()
    for row in rows:
        try:
            run = Run(*bodies.get(row.body_id))
            keys = key_places(run.keys(), row.bits)
            item_refs(run)
        except (BadRow, BadRun):
            # The step that acquires it sets it aside.
            continue
        wanted.update(keys)
        readable.append((row, run))
    known = await con.keys.find(queue, wanted, with_rows=rule.policy == "replace")
    known = await _with_contents(con, rule, known, [run for _, run in readable])
    arbiter = await _arbiter(con, rule, known)
    admitted = [_Admitted(row, arbiter.decide(run, row.bits)) for row, run in readable]
    await void(con, [gone for one in admitted for gone in one.decided.replaced], books)
    await _leave_out(con, admitted, books)
    await con.keys.release(queue, [gone for one in admitted for gone in one.decided.former])
    await con.keys.take(
        queue,
        [Taking(one.decided.run, one.decided.keys, one.row.body_id, {}) for one in admitted],
    )


async def forget(con: Connection) -> int:
    """Forgets some of the keys that are free again, and of the runs that nobody will offer again;
    how many of both."""
    runs = await con.execute(FORGET_OFFERED, con.keys.offered_max, FORGOTTEN_MAX)
    return runs + await con.keys.forget()


async def _leave_out(con: Connection, admitted: Sequence[_Admitted], books: Books) -> None:
    """Deletes items that lost, with their rows where none is left."""
    rests: dict[int, int] = {}
    gone: list[Arrival] = []
    for row, decided in admitted:
        lost = (row.bits & ~decided.won).bit_count()
        if lost and decided.won:
            rests[row.n] = decided.won
        elif lost:
            gone.append(row)
        books.leave(row.place, lost, rows_gone=int(not decided.won))
        books.delete(row.place.queue, lost, row.write)
        _, *counts = count_outcomes(decided.outcomes)
        books.decide(row.write, *counts)
    await con.rows.shrink(rests)
    await con.rows.delete([row.n for row in gone])
    await con.rows.drop_bodies(row.body_id for row in gone)


async def _decide(
    con: Connection, queue: str, offers: Sequence[Offer], rule: KeyRule, repeats: Repeats
) -> list[_Decided]:
    is_exact = rule.policy == "replace" or any(one.only_if is not None for one in offers)
    known: dict[bytes, Held] = {}
    if is_exact or repeats.are_likely(queue):
        named: set[bytes] = set()
        for one in offers:
            named.update(one.run.keys())
        named.discard(b"")
        known = await con.keys.find(queue, named, with_rows=is_exact)
        repeats.found(queue, len(known))
        known = await _with_contents(con, rule, known, [one.run for one in offers])
    arbiter = await _arbiter(con, rule, known)
    return [
        arbiter.decide(one.run, item_bits(0, one.run.head.count), one.only_if) for one in offers
    ]


async def _with_contents(
    con: Connection, rule: KeyRule, known: dict[bytes, Held], runs: Sequence[Run]
) -> dict[bytes, Held]:
    """With what those items say that one of the runs may offer again."""
    if rule.policy != "replace":
        return known
    wanted: dict[bytes, list[Held]] = {}
    for run in runs:
        if run.head.due_ms:
            for key in known.keys() & set(run.keys()):
                held = known[key]
                if may_be_same(held.holder, run.head):
                    wanted.setdefault(held.where.body_id, []).append(held)
    said = dict(known)
    for part in _parts(wanted):
        bodies = await con.rows.read_bodies(part)
        for body_id in part:
            # What cannot be read is replaced.
            with suppress(BadRow, BadRun):
                contents = Contents(Run(*bodies.get(body_id)))
                for held in wanted[body_id]:
                    content = contents.of(held.where.place)
                    said[held.where.key] = Known(held.holder, held.where, content)
    return said


def _parts(wanted: Mapping[bytes, Sequence[Held]]) -> Iterator[list[bytes]]:
    """Bodies that are read together."""
    part: list[bytes] = []
    size = 0
    for body_id, items in wanted.items():
        row = items[0].where.row
        assert row is not None
        if part and size + row.size > READ_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(body_id)
        size += row.size
    if part:
        yield part


async def _arbiter(
    con: Connection, rule: KeyRule, known: Mapping[bytes, Held]
) -> Arbiter[KeyedItem]:
    # The time matters only if one of the keys is taken.
    return Arbiter(rule, await con.now() if known else 0, known)


async def _carry_out(
    con: Connection, queue: str, decided: Sequence[_Decided], books: Books
) -> None:
    await void(con, [gone for each in decided for gone in each.replaced], books)
    await con.keys.release(queue, [gone for each in decided for gone in each.former])
    rows: list[NewRow] = []
    takings: list[Taking] = []
    cutter = Cutter()
    for each in decided:
        books.pass_by(queue, each.replaced_here.bit_count())
        if not each.won:
            # Of the same step, all of it may have been replaced again.
            continue
        head, data, bits = cutter.part(each.run.head, bytes(each.run.data), each.won)
        # Of a run that was forgotten, other items may still be here under its id.
        rows.append(NewRow(new_run_id(), head, data, bits, due_ms=head.due_ms))
        books.accept(place_of(head), bits.bit_count())
        is_cut = head.run_id != each.run.head.run_id
        places = {index: place for place, index in enumerate(indexes(each.won))} if is_cut else {}
        takings.append(Taking(each.run, each.keys, head.run_id, places))
    await con.rows.insert(rows, Unpacked())
    await con.keys.take(queue, takings)


async def _known(
    con: Connection, run_ids: Sequence[bytes]
) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
    """What was answered to these runs before, and fingerprints of runs that have these ids."""
    answers: dict[bytes, bytes] = {}
    contents: dict[bytes, int] = {}
    for run_id, data, outcomes, content in await con.fetch(SELECT_KNOWN, run_ids):
        if data is not None:
            contents.setdefault(run_id, fingerprint_of(data))
            continue
        answers[run_id] = outcomes
        if content is not None:
            contents[run_id] = content
    return answers, contents


def _narrow(outcomes: bytes) -> bytes:
    """One byte where all items had the same outcome, as most have."""
    return outcomes[:1] if outcomes == outcomes[:1] * len(outcomes) else outcomes


def _widen(outcomes: bytes, items: int) -> bytes:
    return outcomes * items if len(outcomes) == 1 else outcomes


SELECT_KNOWN: Final = Statement("""SELECT run_id, NULL AS data, outcomes, fingerprint FROM offered
    WHERE run_id = ANY ($1)
    UNION ALL SELECT id, data, NULL, NULL FROM bodies WHERE id = ANY ($1)""")
FORGET_OFFERED: Final = Statement("""DELETE FROM offered WHERE n IN (
    SELECT n FROM offered WHERE n <= (SELECT max(n) FROM offered) - $1 ORDER BY n LIMIT $2
    FOR UPDATE SKIP LOCKED)""")
