"""Triggers: leases, and jobs with the rows that each has claimed.

A job's claim is that of a stream's consumer (claims.py), made in the transaction that stores the
job. Where a batch ends within a row, the row is cut in two; both parts stay on the one body. Only
the start of a body is read, unless the body lists ids of its own. In SQLite a poll that claims
10,000 items takes 10 ms of CPU where they are in runs of 1,000, and 117 in runs of one.

The row of the lease is locked first, until the job is stored. Of two daemons that poll for one
trigger at once, the second one finds the lease of the first, on the store's clock.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from actors.model.books import ColdReceipt
from actors.model.keys import KeyRule
from actors.model.slices import indexes
from actors.ports.trigger_jobs import (
    JOB_CLAIM,
    JOBS_PAGE,
    Claim,
    JobList,
    JobWatch,
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
from daemon.stores.cold.books import RECEIPT, Books, Place
from daemon.stores.cold.connection import Connection, Room, Row
from daemon.stores.cold.job_ends import JobEnding
from daemon.stores.cold.job_failures import ROWS_AT_ONCE
from daemon.stores.cold.leasing import cut
from daemon.stores.cold.offers import offer
from daemon.stores.cold.rows import BadRow, unpack_bits
from daemon.stores.cold.statement import Statement
from forebay.errors import BadRun
from forebay.head import FIXED
from forebay.ids import format_item_id
from forebay.limits import RUN_HEAD_FIXED_BYTES
from forebay.run import IDS, Run


class ColdTriggers:
    """Made by the cold store, whose database it shares."""

    def __init__(self, db: JobEnding) -> None:
        self._db = db

    def watch(self, watch: JobWatch) -> None:
        self._db.watch = watch

    async def poll(self, poll: Poll) -> Polled:
        lease, now_ms = await self._db.read(partial(_look, name=poll.name))
        step = next_step(lease, poll, now_ms)
        if not (step.is_time or step.is_to_keep):
            return Polled(step.is_ours, step.wait_s, is_paused=_is_paused(lease))
        # A poll that makes no job is not worth a sync: it may be forgotten.
        polled = await self._db.write(
            partial(_poll, poll=poll), is_durable=False, is_new_work=poll.claim is not None
        )
        if polled.made is not None:
            await self._db.sync()
        return polled

    async def jobs(self, after: bytes = b"", limit: int = JOBS_PAGE) -> JobList:
        return await self._db.read(lambda con: _jobs(con, after, limit))

    async def died(self, ids: Sequence[str]) -> set[str]:
        return await self._db.read(lambda con: _died(con, ids))

    async def end(self, run_id: bytes) -> None:
        await self._db.write(lambda con: _note(con, run_id))

    async def let_go(self, name: str, holder: bytes) -> None:
        await self._db.write(lambda con: con.execute(LET_GO, name, holder), is_durable=False)

    async def pause(self, name: str, *, is_paused: bool) -> None:
        await self._db.write(lambda con: con.execute(PAUSE, name, b"", is_paused))


def _is_paused(lease: TriggerLease | None) -> bool:
    return lease is not None and lease.is_paused


async def _look(con: Connection, name: str) -> tuple[TriggerLease | None, int]:
    return _lease(await con.first(SELECT_LEASE, name)), await con.now()


def _lease(row: Row | None) -> TriggerLease | None:
    if row is None:
        return None
    holder, until_ms, polled_ms, is_paused = row
    return TriggerLease(holder, until_ms, polled_ms, bool(is_paused))


async def _jobs(con: Connection, after: bytes, limit: int) -> JobList:
    found = await con.fetch(SELECT_JOBS, after, limit)
    jobs = [TriggerJob._make((*row[:6], fate_of(ColdReceipt(*row[6:])))) for row in found]
    # Where there are `limit` of them there may be more.
    return JobList(await con.now(), jobs, jobs[-1].run_id if len(jobs) == limit else None)


async def _died(con: Connection, ids: Sequence[str]) -> set[str]:
    return {id_ for (id_,) in await con.fetch(SELECT_DEAD, ids)}


async def _note(con: Connection, run_id: bytes) -> None:
    con.jobs.add(run_id)


# Polling.


async def _poll(con: Connection, poll: Poll) -> Polled:
    # Made if it is not there, so that there is something to lock.
    await con.execute(INSERT_LEASE, poll.name, b"")
    lease = _lease(await con.first(LOCK_LEASE, poll.name))
    now, claim = await con.now(), poll.claim
    made = None if claim is None else await _find(con, claim.run_id)
    if made is not None:
        # The answer was lost; the poll was not.
        return Polled(True, poll.interval_ms / 1000, made)
    step = next_step(lease, poll, now)
    if not step.is_ours:
        return Polled(is_ours=False, is_paused=_is_paused(lease))
    polled_ms = 0 if lease is None else lease.polled_ms
    wait_s = step.wait_s
    if step.is_time and claim is not None:
        live = await con.first(COUNT_JOBS, poll.name)
        has_room = live is not None and live[0] < claim.jobs_max
        picked = await _pick(con, claim) if has_room else None
        if picked is not None:
            made = await _make_job(con, poll.name, claim, picked)
            polled_ms, wait_s = now, poll.interval_ms / 1000
    until_ms = now + round(poll.lease_s * 1000)
    await con.execute(UPDATE_LEASE, poll.name, poll.holder, until_ms, polled_ms)
    return Polled(True, wait_s, made, _is_paused(lease))


async def _pick(con: Connection, claim: Claim) -> list[int] | None:
    """The rows of a batch, in order, the last one cut to fit; None: ask again later."""
    room = Room(claim.items_max, claims.PLENTY, claims.CLAIM_ROWS_MAX, cuts=True)
    picked = await con.pick(claim.queue, claim.except_flows, room)
    if picked:
        counts = {row[0]: row[1] for row in await con.fetch(SELECT_COUNTS, picked)}
        surplus = sum(counts.values()) - claim.items_max
        if surplus > 0:
            await _cut(con, picked[-1], counts[picked[-1]] - surplus)
    return picked


async def _cut(con: Connection, n: int, items: int) -> None:
    """The row keeps its first items; the others are a row of their own."""
    row = await con.first(SELECT_ROW, n)
    assert row is not None
    packed, *place = row
    await cut(con, n, unpack_bits(packed), items, Place(*place))


async def _make_job(
    con: Connection, name: str, claim: Claim, picked: Sequence[int]
) -> TriggerJob | None:
    """None: there is nothing to claim."""
    if not picked:
        return None
    consumer = job_consumer(claim.run_id)
    n = await claims.begin(con, claim.queue, consumer)
    await claims.freeze(con, n, JOB_CLAIM, picked)
    ids = await _claimed_ids(con, claim.queue, n)
    if not ids:
        await claims.drop(con, claim.queue, consumer)
        return None
    now = await con.now()
    made = TriggerJob(claim.run_id, name, claim.queue, claim.target, len(ids), now)
    await offer(con, [job_offer(name, claim, ids, now)], lambda _: KeyRule())
    books = Books()
    books.begin(claim.run_id)
    await con.record(books)
    await con.execute(INSERT_JOB, *made[:6])
    await con.execute(SET_JOB_ID, n, made.id)
    return made


async def _claimed_ids(con: Connection, queue: str, consumer: int) -> list[str]:
    """What is claimed, in order. Rows that cannot be read are set aside."""
    rows = await con.fetch(SELECT_CLAIMED, consumer, RUN_HEAD_FIXED_BYTES)
    ids: list[str] = []
    bad: list[claims.BadClaimed] = []
    for at in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[at : at + ROWS_AT_ONCE]
        # Of the others the start is enough.
        bodies = await con.rows.read_bodies({row[1] for row in part if _lists_ids(row[-1])})
        for n, body_id, packed, items, size, start in part:
            bits = unpack_bits(packed)
            try:
                if start is None or len(start) < FIXED.size:
                    raise BadRow("its body is missing")
                if _lists_ids(start):
                    all_ids = Run(*bodies.get(body_id)).item_ids()
                    ids += [all_ids[index] for index in indexes(bits)]
                else:
                    ids += [format_item_id(body_id, index) for index in indexes(bits)]
            except (BadRow, BadRun, IndexError) as error:
                bad.append(claims.BadClaimed(n, body_id, items, size, str(error)))
    if bad:
        await claims.set_aside(con, queue, bad)
    return ids


def _lists_ids(start: bytes | None) -> bool:
    """Whether the run that begins so lists the ids of its items."""
    return (
        start is not None and len(start) >= FIXED.size and bool(FIXED.unpack_from(start)[2] & IDS)
    )


async def _find(con: Connection, run_id: bytes) -> TriggerJob | None:
    row = await con.first(SELECT_JOB, run_id)
    return None if row is None else TriggerJob(*row)


_LEASE: Final = "SELECT holder, until_ms, polled_ms, is_paused FROM trigger_leases WHERE name = $1"
SELECT_LEASE: Final = Statement(_LEASE)
LOCK_LEASE: Final = Statement(f"{_LEASE} FOR UPDATE")
INSERT_LEASE: Final = Statement("""INSERT INTO trigger_leases VALUES ($1, $2, 0, 0, FALSE)
    ON CONFLICT DO NOTHING""")
UPDATE_LEASE: Final = Statement("""UPDATE trigger_leases
    SET holder = $2, until_ms = $3, polled_ms = $4 WHERE name = $1""")
PAUSE: Final = Statement("""INSERT INTO trigger_leases VALUES ($1, $2, 0, 0, $3)
    ON CONFLICT (name) DO UPDATE SET is_paused = excluded.is_paused""")
LET_GO: Final = Statement("""UPDATE trigger_leases SET until_ms = 0
    WHERE name = $1 AND holder = $2""")

_JOB: Final = "run_id, name, queue, target, items, made_ms"
SELECT_JOB: Final = Statement(f"SELECT {_JOB} FROM trigger_jobs WHERE run_id = $1")
COUNT_JOBS: Final = Statement("SELECT count(*) FROM trigger_jobs WHERE name = $1")
_RECEIPT: Final = ", ".join(f"coalesce(sum({name}), 0)::bigint" for name in RECEIPT)
SELECT_JOBS: Final = Statement(f"""SELECT {_JOB}, {_RECEIPT}
    FROM trigger_jobs LEFT JOIN receipts ON write_id = run_id
    WHERE run_id > $1 GROUP BY {_JOB} ORDER BY run_id LIMIT $2""")
INSERT_JOB: Final = Statement(f"INSERT INTO trigger_jobs ({_JOB}) VALUES ($1, $2, $3, $4, $5, $6)")

SET_JOB_ID: Final = Statement("""UPDATE runs INDEXED BY runs_claimed SET job_id = $2
    WHERE state = 'CLAIMED' AND consumer = $1""")
SELECT_CLAIMED: Final = Statement("""SELECT runs.n, body_id, bits, count, size,
    substr(bodies.data, 1, $2)
    FROM runs INDEXED BY runs_claimed LEFT JOIN bodies ON bodies.id = runs.body_id
    WHERE state = 'CLAIMED' AND consumer = $1 ORDER BY place""")
SELECT_DEAD: Final = Statement("""SELECT DISTINCT item_id FROM runs INDEXED BY runs_dead_item
    WHERE state = 'FAILED' AND item_id = ANY ($1)""")
SELECT_COUNTS: Final = Statement(
    "SELECT runs.n, count FROM :numbered($1) AS picked JOIN runs ON runs.n = picked.n"
)
SELECT_ROW: Final = Statement("SELECT bits, queue, flow, action FROM runs WHERE n = $1")
