"""Triggers in SQLite: leases, and jobs with the rows that each has claimed.

A job's claim is that of a stream's consumer (daemon/stores/cold/claims.py), made in the
transaction that stores the job. Where a batch ends within a row, the row is cut in two: both parts
stay on the one body. Of a body nothing but the head is read, unless it lists ids of its own. A poll
that claims 10,000 items takes 10 ms of CPU where they are in runs of 1,000, and 117 in runs of one.

The lease of a daemon that is alone is always its own. It is kept as in PostgreSQL all the same, so
that both stores do the same.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from actors.model.books import ColdReceipt
from actors.model.finished import Keeps
from actors.model.keys import KeyRule, KeyRules
from actors.model.slices import ItemError, indexes, lowest_bit
from actors.ports.trigger_jobs import (
    JOB_CLAIM,
    JOBS_PAGE,
    SPENT,
    Claim,
    FailedJob,
    JobEnd,
    JobList,
    Poll,
    Polled,
    TriggerJob,
    TriggerLease,
    fate_of,
    job_consumer,
    job_offer,
    next_step,
)
from daemon.stores.cold import claims
from daemon.stores.cold.books import Place
from daemon.stores.cold.connection import drive
from daemon.stores.cold.keyed import window_of
from daemon.stores.cold.offers import offer
from daemon.stores.cold.rows import BadRow, pack_bits, unpack_bits
from daemon.stores.cold.statement import Now
from daemon.stores.sqlite import due, leasing
from daemon.stores.sqlite.books import Books, forget_receipts, read_receipt
from daemon.stores.sqlite.connection import Database
from daemon.stores.sqlite.history import tries
from daemon.stores.sqlite.job_failures import fail_claimed, letter_error
from daemon.stores.sqlite.rows import read_body
from daemon.stores.sqlite.steps import SqliteConnection
from forebay.errors import BadRun
from forebay.head import FIXED
from forebay.ids import format_item_id, new_run_id
from forebay.limits import RUN_HEAD_FIXED_BYTES
from forebay.run import IDS, Run, RunHead


class SqliteTriggers:
    """Made by SqliteCold, whose connection it shares."""

    def __init__(
        self,
        db: Database,
        now: Callable[[], Now],
        keeps: Callable[[], Keeps],
        rules: Callable[[], KeyRules],
    ) -> None:
        self._db = db
        self._now = now
        self._keeps = keeps
        self._rules = rules

    async def poll(self, poll: Poll) -> Polled:
        now_ms = self._now().wall
        lease, has_due = await self._db.read(partial(_outlook, poll=poll, now=self._now()))
        step = next_step(lease, poll, now_ms)
        if not (step.is_time or step.is_to_keep):
            return Polled(step.is_ours, step.wait_s, is_paused=is_paused(lease))
        work = partial(_poll, poll=poll, now=self._now())
        # A poll that finds nothing is not worth a sync: it may be forgotten.
        polled = await self._db.write(work, is_durable=has_due, is_new_work=True)
        if polled.made is not None and not has_due:
            # It came due between the look and the step.
            await self._db.sync()
        return polled

    async def jobs(self, after: bytes = b"", limit: int = JOBS_PAGE) -> JobList:
        rows = await self._db.read(lambda db: db.execute(SELECT_JOBS, (after, limit)).fetchall())
        return job_page(self._now().wall, rows, limit)

    async def end(self, run_id: bytes, retries_max: int) -> JobEnd | None:
        def work(db: sqlite3.Connection, kept: Iterator[Keeps]) -> JobEnd | None:
            return _end(db, run_id, retries_max, self._now(), next(kept), self._rules())

        return await self._db.write(partial(work, kept=tries(self._keeps())))

    async def let_go(self, name: str, holder: bytes) -> None:
        await self._db.write(
            lambda db: db.execute(LET_GO, (name, holder)).rowcount, is_durable=False
        )

    async def pause(self, name: str, *, is_paused: bool) -> None:
        await self._db.write(lambda db: db.execute(PAUSE, (name, is_paused)).rowcount)


def is_paused(lease: TriggerLease | None) -> bool:
    return lease is not None and lease.is_paused


def job_page(now_ms: int, rows: Sequence[Sequence[Any]], limit: int) -> JobList:
    """Of at most `limit` rows; where there are so many there may be more."""
    jobs = [job_of(tuple(row)) for row in rows]
    return JobList(now_ms, jobs, jobs[-1].run_id if len(jobs) == limit else None)


def job_of(row: tuple[Any, ...]) -> TriggerJob:
    """With what its receipt says."""
    delivered, dead, deleted, lost = row[6:]
    receipt = ColdReceipt(delivered, dead, deleted, lost)
    return TriggerJob._make((*row[:6], fate_of(receipt)))


def _outlook(db: sqlite3.Connection, poll: Poll, now: Now) -> tuple[TriggerLease | None, bool]:
    claim = poll.claim
    has_due = claim is not None and leasing.outlook(db, claim.queue, now, frozenset()).has_due
    return _lease(db, poll.name), has_due


def _lease(db: sqlite3.Connection, name: str) -> TriggerLease | None:
    row = db.execute(SELECT_LEASE, (name,)).fetchone()
    return None if row is None else TriggerLease._make((*row[:3], bool(row[3])))


def _poll(db: sqlite3.Connection, poll: Poll, now: Now) -> Polled:
    lease = _lease(db, poll.name)
    step = next_step(lease, poll, now.wall)
    if not step.is_ours:
        return Polled(is_ours=False, is_paused=is_paused(lease))
    polled_ms = 0 if lease is None else lease.polled_ms
    made, wait_s = None, step.wait_s
    if step.is_time and poll.claim is not None:
        (live,) = db.execute("SELECT count(*) FROM trigger_jobs WHERE name = ?", (poll.name,))
        is_room = live[0] < poll.claim.jobs_max
        if is_room and due.move_due(db, poll.claim.queue, now):
            made = _make_job(db, poll.name, poll.claim, now)
            polled_ms, wait_s = now.wall, poll.interval_ms / 1000
    until_ms = now.wall + round(poll.lease_s * 1000)
    db.execute(PUT_LEASE, (poll.name, poll.holder, until_ms, polled_ms))
    return Polled(True, wait_s, made, is_paused(lease))


def _make_job(db: sqlite3.Connection, name: str, claim: Claim, now: Now) -> TriggerJob | None:
    """None: nothing is due."""
    _cut_to_fit(db, claim, now)
    consumer = job_consumer(claim.run_id)
    con = SqliteConnection(db, now, makes_room=False)
    # What history keeps and how long keys stay taken is asked when the claim is acknowledged.
    given = (claim.queue, consumer, 0, claim.items_max, claim.except_flows)
    stream = drive(claims.claim(con, claims.Wish(*given, "none")))
    is_claimed = stream is not None and stream.claim is not None
    ids = _claimed_ids(con, db, claim.queue, consumer) if is_claimed else []
    if not ids:
        drive(claims.drop(con, claim.queue, consumer))
        return None
    made = TriggerJob(claim.run_id, name, claim.queue, claim.target, len(ids), now.wall)
    drive(offer(con, [job_offer(name, claim, ids, now.wall)], lambda _: KeyRule()))
    db.execute(BEGIN_RECEIPT, (claim.run_id,))
    db.execute(INSERT_JOB, made[:6])
    db.execute(SET_JOB_ID, (made.id, claim.queue, consumer))
    return made


def _cut_to_fit(db: sqlite3.Connection, claim: Claim, now: Now) -> None:
    """Cuts the row in two within which the batch ends."""
    room, wanted = claim.items_max, None
    given = (claim.queue, sorted(claim.except_flows), claims.CLAIM_ROWS_MAX)
    cursor = db.execute(*due.NEXT.sqlite(given, now))
    for n, _, count, _ in cursor:
        if count > room:
            wanted = n
            break
        room -= count
        if not room:
            break
    # The index must not be walked while rows join it.
    cursor.close()
    if wanted is not None and room:
        _cut(db, wanted, room)


def _cut(db: sqlite3.Connection, n: int, items: int) -> None:
    """The row keeps its first items; the others are a row of their own."""
    packed, *place = db.execute(SELECT_ROW, (n,)).fetchone()
    first, rest = halves(unpack_bits(packed), items)
    db.execute(
        INSERT_REST,
        (new_run_id(), lowest_bit(rest), rest.bit_count(), pack_bits(rest), n),
    )
    db.execute(SHRINK, (pack_bits(first), items, n))
    books = Books()
    books.leave(Place._make(place), 0, rows_gone=-1)
    books.write(db)


def halves(bits: int, items: int) -> tuple[int, int]:
    """The first so many of these items, and the others."""
    first = 0
    for index in indexes(bits):
        if not items:
            break
        first |= 1 << index
        items -= 1
    return first, bits & ~first


def _claimed_ids(
    con: SqliteConnection, db: sqlite3.Connection, queue: str, consumer: str
) -> list[str]:
    """What is claimed, in order. Rows that cannot be read are set aside."""
    ids: list[str] = []
    bad: list[claims.BadClaimed] = []
    rows = db.execute(SELECT_CLAIMED, (RUN_HEAD_FIXED_BYTES, queue, consumer)).fetchall()
    for n, body_id, packed, items, size, start in rows:
        try:
            ids += ids_of(body_id, unpack_bits(packed), start, partial(read_body, db, body_id))
        except BadRow as error:
            bad.append(claims.BadClaimed(n, body_id, items, size, str(error)))
    if bad:
        drive(claims.set_aside(con, queue, bad))
    return ids


def ids_of(
    body_id: bytes, bits: int, start: bytes | None, read: Callable[[], tuple[RunHead, bytes]]
) -> list[str]:
    """The ids of items of a run, of which the first bytes are `start`. BadRow if it is not one."""
    try:
        if start is None or len(start) < FIXED.size:
            raise BadRow("its body is missing")
        flags = FIXED.unpack_from(start)[2]
        if not flags & IDS:
            return [format_item_id(body_id, index) for index in indexes(bits)]
        all_ids = Run(*read()).item_ids()
        return [all_ids[index] for index in indexes(bits)]
    except (BadRun, IndexError) as error:
        raise BadRow(str(error)) from error


def _end(
    db: sqlite3.Connection,
    run_id: bytes,
    retries_max: int,
    now: Now,
    keeps: Keeps,
    rules: KeyRules,
) -> JobEnd | None:
    row = db.execute(SELECT_JOB, (run_id,)).fetchone()
    if row is None:
        return None
    job = TriggerJob._make((*row, fate_of(read_receipt(db, run_id))))
    if job.fate is None:
        return None
    consumer, ended = job_consumer(run_id), JobEnd(job)
    con = SqliteConnection(db, now, makes_room=False)
    # An operator may have dropped it: what it had is somebody else's then.
    if drive(claims.stream(con, job.queue, consumer)).claim == JOB_CLAIM:
        if job.fate == "done":
            given = (job.queue, consumer, JOB_CLAIM, 0, frozenset[str]())
            wish = claims.Wish(*given, keeps(job.queue), window_of(rules(job.queue)))
            drive(claims.claim(con, wish))
        elif job.fate == "dead":
            failed = FailedJob(job, _letter_error(db, job.id), retries_max, now.wall)
            n = drive(claims.open_consumer(con, job.queue, consumer, JOB_CLAIM))
            ended = fail_claimed(db, n, failed)
    if job.fate == "dead":
        db.execute(MARK_SPENT, (SPENT, job.id))
    drive(claims.drop(con, job.queue, consumer))
    db.execute("DELETE FROM trigger_jobs WHERE run_id = ?", (run_id,))
    forget_receipts(db, [run_id])
    return ended


def _letter_error(db: sqlite3.Connection, job_id: str) -> ItemError | None:
    row = db.execute(SELECT_LETTER, (job_id,)).fetchone()
    return None if row is None else letter_error(row[0])


_OF_CONSUMER: Final = """state = 'CLAIMED'
    AND consumer = (SELECT n FROM consumers WHERE queue = ? AND name = ?)"""
_JOB: Final = "run_id, name, queue, target, items, made_ms"

SELECT_LEASE: Final = """SELECT holder, until_ms, polled_ms, is_paused FROM trigger_leases
    WHERE name = ?"""
PUT_LEASE: Final = """INSERT INTO trigger_leases VALUES (?, ?, ?, ?, 0)
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms,
    polled_ms = excluded.polled_ms"""
PAUSE: Final = """INSERT INTO trigger_leases VALUES (?, x'', 0, 0, ?)
    ON CONFLICT (name) DO UPDATE SET is_paused = excluded.is_paused"""
LET_GO: Final = "UPDATE trigger_leases SET until_ms = 0 WHERE name = ? AND holder = ?"
SELECT_JOB: Final = f"SELECT {_JOB} FROM trigger_jobs WHERE run_id = ?"
SELECT_JOBS: Final = f"""SELECT {_JOB}, coalesce(delivered, 0), coalesce(dead, 0),
    coalesce(deleted, 0), coalesce(lost, 0)
    FROM trigger_jobs LEFT JOIN receipts ON write_id = run_id
    WHERE run_id > ? ORDER BY run_id LIMIT ?"""
INSERT_JOB: Final = f"INSERT INTO trigger_jobs ({_JOB}) VALUES (?, ?, ?, ?, ?, ?)"
BEGIN_RECEIPT: Final = (
    "INSERT INTO receipts (write_id, delivered, dead, deleted) VALUES (?, 0, 0, 0)"
)
SET_JOB_ID: Final = f"UPDATE runs INDEXED BY runs_claimed SET job_id = ? WHERE {_OF_CONSUMER}"
SELECT_LETTER: Final = """SELECT CAST(error_history AS BLOB) FROM runs INDEXED BY runs_dead_item
    WHERE state = 'FAILED' AND item_id = ? ORDER BY died_at DESC LIMIT 1"""
MARK_SPENT: Final = """UPDATE runs INDEXED BY runs_dead_item SET job_id = ?
    WHERE state = 'FAILED' AND item_id = ?"""
SELECT_CLAIMED: Final = """SELECT runs.n, body_id, bits, count, size, substr(bodies.data, 1, ?)
    FROM runs INDEXED BY runs_claimed LEFT JOIN bodies ON bodies.id = runs.body_id
    WHERE state = 'CLAIMED' AND consumer = (SELECT n FROM consumers WHERE queue = ? AND name = ?)
    ORDER BY place"""
SELECT_ROW: Final = "SELECT bits, queue, flow, action FROM runs WHERE n = ?"
SHRINK: Final = "UPDATE runs SET bits = ?, count = ? WHERE n = ?"
_SAME: Final = """body_id, state, is_due, queue, flow, flow_type, action, key, priority,
    scheduled_at, scheduled_at_initially, due_ms, size, attempt, created_at, origin, error_history,
    headers, write_id"""
INSERT_REST: Final = f"""INSERT INTO runs (id, first_item, count, bits, {_SAME})
    SELECT ?, ?, ?, ?, {_SAME} FROM runs WHERE n = ?"""
