"""Triggers in PostgreSQL: leases, and jobs with the rows that each has claimed.

As in daemon/stores/sqlite/triggers.py. The lease's row is locked first, and held until the job is
stored: of daemons that poll for one trigger at once the second one finds the first one's lease, on
the server's clock. A daemon that had the lease and was slow finds another's, and does nothing.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from actors.model.finished import Keeps
from actors.model.keys import KeyRule, KeyRules
from actors.model.slices import lowest_bit
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
from daemon.stores.cold.books import RECEIPT, Place
from daemon.stores.cold.connection import Room
from daemon.stores.cold.keyed import window_of
from daemon.stores.cold.offers import offer
from daemon.stores.cold.rows import BadRow, pack_bits, unpack_bits
from daemon.stores.cold.text import from_text, to_text
from daemon.stores.postgres import keys
from daemon.stores.postgres.books import SharedBooks, forget_receipts, read_receipt
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.job_failures import fail_claimed
from daemon.stores.postgres.leasing import outlook, pick
from daemon.stores.postgres.rows import read_bodies
from daemon.stores.postgres.steps import PostgresConnection
from daemon.stores.sqlite.job_failures import letter_error
from daemon.stores.sqlite.triggers import halves, ids_of, is_paused, job_page
from forebay.ids import new_run_id
from forebay.limits import RUN_HEAD_FIXED_BYTES


class PostgresTriggers:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(
        self,
        db: Database,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        notices: Callable[[Iterable[str]], str | None],
        keeps: Callable[[], Keeps],
        rules: Callable[[], KeyRules],
    ) -> None:
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._notices = notices
        self._keeps = keeps
        self._rules = rules

    async def poll(self, poll: Poll) -> Polled:
        async def look(con: Connection) -> tuple[TriggerLease | None, int, bool]:
            lease, now = await _lease(con, poll.name), await keys.now(con, self._now_ms())
            if poll.claim is None:
                return lease, now, False
            due = await outlook(con, poll.claim.queue, frozenset(), self._now_ms())
            return lease, now, due.has_due

        lease, now, has_due = await self._db.read(look)
        step = next_step(lease, poll, now)
        if not (step.is_time or step.is_to_keep):
            return Polled(step.is_ours, step.wait_s, is_paused=is_paused(lease))

        def targets(polled: Polled) -> str | None:
            return self._notices([polled.made.target] if polled.made is not None else [])

        # A poll that finds nothing is not worth a sync: it may be forgotten.
        work = partial(self._poll, poll=poll)
        polled = await self._db.write(work, is_durable=has_due, after=targets)
        if polled.made is not None and not has_due:
            # It came due between the look and the step.
            await self._db.sync()
        return polled

    async def jobs(self, after: bytes = b"", limit: int = JOBS_PAGE) -> JobList:
        async def work(con: Connection) -> JobList:
            rows = await con.fetch(SELECT_JOBS, after, limit)
            return job_page(await keys.now(con, self._now_ms()), rows, limit)

        return await self._db.read(work)

    async def end(self, run_id: bytes, retries_max: int) -> JobEnd | None:
        def due(ended: JobEnd | None) -> str | None:
            is_back = ended is not None and ended.fate != "done"
            return self._notices([ended.job.queue] if ended is not None and is_back else [])

        return await self._db.write(lambda con: self._end(con, run_id, retries_max), after=due)

    async def let_go(self, name: str, holder: bytes) -> None:
        await self._db.write(lambda con: con.execute(LET_GO, name, holder), is_durable=False)

    async def pause(self, name: str, *, is_paused: bool) -> None:
        await self._db.write(lambda con: con.execute(PAUSE, name, is_paused))

    async def _poll(self, con: Connection, poll: Poll) -> Polled:
        # Made if it is not there, so that there is something to lock.
        await con.execute(INSERT_LEASE, poll.name)
        lease = await _lease(con, poll.name, lock=" FOR UPDATE")
        now = await keys.now(con, self._now_ms())
        claim = poll.claim
        made = await _find(con, claim.run_id) if claim is not None else None
        if made is not None:
            # The answer was lost; the poll was not.
            return Polled(True, poll.interval_ms / 1000, made)
        step = next_step(lease, poll, now)
        if not step.is_ours:
            return Polled(is_ours=False, is_paused=is_paused(lease))
        polled_ms = 0 if lease is None else lease.polled_ms
        wait_s = step.wait_s
        if step.is_time and claim is not None:
            live = await con.fetchval(COUNT_JOBS, poll.name)
            picked = await self._pick(con, claim) if live < claim.jobs_max else None
            if picked is not None:
                made = await self._make_job(con, poll.name, claim, picked, now)
                polled_ms, wait_s = now, poll.interval_ms / 1000
        until_ms = now + round(poll.lease_s * 1000)
        await con.execute(UPDATE_LEASE, poll.name, poll.holder, until_ms, polled_ms)
        return Polled(True, wait_s, made, is_paused(lease))

    async def _pick(self, con: Connection, claim: Claim) -> list[int] | None:
        """The rows of a batch, in order; None: ask again later."""
        room = Room(claim.items_max, claims.PLENTY, claims.CLAIM_ROWS_MAX)
        picked = await pick(con, claim.queue, claim.except_flows, room, self._now_ms())
        if not picked:
            return picked
        counts = await con.fetch("SELECT n, count FROM runs WHERE n = ANY ($1)", picked)
        left = claim.items_max - sum(count for _, count in counts)
        if left < 0:
            # The first one is too long by itself.
            await self._cut(con, picked[0], claim.items_max)
        elif left > 0:
            flows = [to_text(flow) for flow in sorted(claim.except_flows)]
            next_ = await con.fetchrow(SELECT_NEXT, claim.queue, flows, picked)
            if next_ is not None and next_["count"] > left:
                await self._cut(con, next_["n"], left)
                picked.append(next_["n"])
        return picked

    async def _cut(self, con: Connection, n: int, items: int) -> None:
        """The row keeps its first items; the others are a row of their own."""
        packed, queue, flow, action = await con.fetchrow(SELECT_ROW, n)
        first, rest = halves(unpack_bits(packed), items)
        values = (lowest_bit(rest), rest.bit_count(), pack_bits(rest))
        await con.execute(INSERT_REST, new_run_id(), *values, n)
        await con.execute(SHRINK, n, pack_bits(first), items)
        books = SharedBooks()
        books.leave(Place(queue, from_text(flow), from_text(action)), 0, rows_gone=-1)
        await books.record(con, self._daemon)

    async def _make_job(
        self, con: Connection, name: str, claim: Claim, picked: list[int], now: int
    ) -> TriggerJob | None:
        if not picked:
            return None
        who = claim.queue, job_consumer(claim.run_id)
        await con.execute(claims.INSERT_CONSUMER.postgres, *who)
        consumer = await con.fetchval(SELECT_CONSUMER, *who)
        connection = PostgresConnection(con, self._daemon, self._now_ms())
        await claims.freeze(connection, consumer, JOB_CLAIM, picked)
        ids = await self._claimed_ids(con, claim.queue, consumer)
        if not ids:
            await claims.drop(connection, *who)
            return None
        made = TriggerJob(claim.run_id, name, claim.queue, claim.target, len(ids), now)
        offered = [job_offer(name, claim, ids, now)]
        steps = PostgresConnection(con, self._daemon, self._now_ms())
        await offer(steps, offered, lambda _: KeyRule())
        await con.execute(BEGIN_RECEIPT, self._daemon, claim.run_id)
        await con.execute(INSERT_JOB, *made[:6])
        await con.execute(SET_JOB_ID, consumer, made.id)
        return made

    async def _claimed_ids(self, con: Connection, queue: str, consumer: int) -> list[str]:
        """What is claimed, in order. Rows that cannot be read are set aside."""
        rows = await con.fetch(SELECT_CLAIMED, consumer, RUN_HEAD_FIXED_BYTES)
        listing = [row["body_id"] for row in rows if row["lists_ids"]]
        bodies = await read_bodies(con, listing)
        ids: list[str] = []
        bad: list[claims.BadClaimed] = []
        for n, body_id, packed, items, size, start, _ in rows:
            try:
                ids += ids_of(body_id, unpack_bits(packed), start, partial(bodies.get, body_id))
            except BadRow as error:
                bad.append(claims.BadClaimed(n, body_id, items, size, str(error)))
        if bad:
            connection = PostgresConnection(con, self._daemon, self._now_ms())
            await claims.set_aside(connection, queue, bad)
        return ids

    async def _end(self, con: Connection, run_id: bytes, retries_max: int) -> JobEnd | None:
        job = await _find(con, run_id, lock=" FOR UPDATE")
        fate = None if job is None else fate_of(await read_receipt(con, run_id))
        if job is None or fate is None:
            return None
        job = job._replace(fate=fate)
        letters = await con.fetch(MARK_SPENT, SPENT, job.id) if fate == "dead" else []
        if fate == "dead" and not letters:
            # It was put back to work, or deleted, since its receipt was read.
            return None
        consumer, ended = job_consumer(run_id), JobEnd(job)
        # An operator may have dropped it: what it had is somebody else's then.
        connection = PostgresConnection(con, self._daemon, self._now_ms())
        if (await claims.stream(connection, job.queue, consumer)).claim == JOB_CLAIM:
            if fate == "done":
                await self._deliver(connection, job, consumer)
            elif fate == "dead":
                now = await keys.now(con, self._now_ms())
                failed = FailedJob(job, letter_error(letters[0][0]), retries_max, now)
                n = await con.fetchval(SELECT_CONSUMER, job.queue, consumer)
                ended = await fail_claimed(con, n, failed, self._daemon)
        await claims.drop(connection, job.queue, consumer)
        await con.execute("DELETE FROM trigger_jobs WHERE run_id = $1", run_id)
        await forget_receipts(con, [run_id])
        return ended

    async def _deliver(self, con: PostgresConnection, job: TriggerJob, consumer: str) -> None:
        given = (job.queue, consumer, JOB_CLAIM, 0, frozenset[str]())
        window = window_of(self._rules()(job.queue))
        await claims.claim(con, claims.Wish(*given, self._keeps()(job.queue), window))


async def _lease(con: Connection, name: str, lock: str = "") -> TriggerLease | None:
    row: Any = await con.fetchrow(SELECT_LEASE + lock, name)
    return None if row is None else TriggerLease(*row)


async def _find(con: Connection, run_id: bytes, lock: str = "") -> TriggerJob | None:
    row = await con.fetchrow(SELECT_JOB + lock, run_id)
    return None if row is None else TriggerJob(*row)


_JOB: Final = "run_id, name, queue, target, items, made_ms"

SELECT_LEASE: Final = """SELECT holder, until_ms, polled_ms, is_paused FROM trigger_leases
    WHERE name = $1"""
INSERT_LEASE: Final = """INSERT INTO trigger_leases VALUES ($1, '', 0, 0, false)
    ON CONFLICT DO NOTHING"""
UPDATE_LEASE: Final = """UPDATE trigger_leases SET holder = $2, until_ms = $3, polled_ms = $4
    WHERE name = $1"""
PAUSE: Final = """INSERT INTO trigger_leases VALUES ($1, '', 0, 0, $2)
    ON CONFLICT (name) DO UPDATE SET is_paused = excluded.is_paused"""
LET_GO: Final = "UPDATE trigger_leases SET until_ms = 0 WHERE name = $1 AND holder = $2"
COUNT_JOBS: Final = "SELECT count(*) FROM trigger_jobs WHERE name = $1"
SELECT_JOB: Final = f"SELECT {_JOB} FROM trigger_jobs WHERE run_id = $1"
SELECT_JOBS: Final = f"""SELECT {_JOB}, delivered, dead, deleted, lost
    FROM trigger_jobs LEFT JOIN LATERAL (
        SELECT coalesce(sum(delivered), 0)::bigint AS delivered,
            coalesce(sum(dead), 0)::bigint AS dead,
            coalesce(sum(deleted), 0)::bigint AS deleted,
            coalesce(sum(lost), 0)::bigint AS lost
        FROM receipts WHERE write_id = run_id
    ) AS receipt ON true
    WHERE run_id > $1 ORDER BY run_id LIMIT $2"""
INSERT_JOB: Final = f"INSERT INTO trigger_jobs ({_JOB}) VALUES ($1, $2, $3, $4, $5, $6)"
BEGIN_RECEIPT: Final = f"""INSERT INTO receipts (daemon, write_id, {", ".join(RECEIPT)})
    VALUES ($1, $2{", 0" * len(RECEIPT)})"""
SELECT_CONSUMER: Final = "SELECT n FROM consumers WHERE queue = $1 AND name = $2"
SET_JOB_ID: Final = "UPDATE runs SET job_id = $2 WHERE state = 'CLAIMED' AND consumer = $1"
MARK_SPENT: Final = """UPDATE runs SET job_id = $1 WHERE state = 'FAILED' AND item_id = $2
    RETURNING error_history"""
# Flags are the sixth byte of a run, and 4 says that it lists ids.
SELECT_CLAIMED: Final = """SELECT runs.n, body_id, bits, count, size, start,
    length(start) = $2 AND get_byte(start, 5) & 4 <> 0 AS lists_ids
    FROM runs LEFT JOIN LATERAL (
        SELECT substring(data FROM 1 FOR $2) AS start FROM bodies WHERE bodies.id = runs.body_id
    ) AS body ON true WHERE state = 'CLAIMED' AND consumer = $1 ORDER BY place"""
SELECT_NEXT: Final = """SELECT n, count FROM runs
    WHERE state = 'COLD_QUEUED' AND is_due AND queue = $1 AND NOT (flow = ANY ($2))
        AND NOT (n = ANY ($3))
    ORDER BY priority, scheduled_at_initially, body_id, first_item LIMIT 1 FOR UPDATE SKIP LOCKED"""
SELECT_ROW: Final = "SELECT bits, queue, flow, action FROM runs WHERE n = $1"
SHRINK: Final = "UPDATE runs SET bits = $2, count = $3 WHERE n = $1"
_SAME: Final = """body_id, state, is_due, queue, flow, flow_type, action, key, priority,
    scheduled_at, scheduled_at_initially, due_ms, size, attempt, created_at, origin, brought_by,
    error_history, headers, write_id"""
INSERT_REST: Final = f"""INSERT INTO runs (id, first_item, count, bits, {_SAME})
    SELECT $1, $2, $3, $4, {_SAME} FROM runs WHERE n = $5"""
