"""The suite of the `TriggerStore` port: one holder, one job for each claim, one end for both."""

import json
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from actors.model.books import ColdReceipt
from actors.model.finished import keep_nothing
from actors.model.keys import KeyRule, no_keys
from actors.model.slices import ItemError
from actors.ports.tiers import ColdItems, ColdRow, DeadFilter, RowOutcome
from actors.ports.trigger_jobs import (
    Claim,
    JobEnd,
    Poll,
    Polled,
    TriggerJob,
    TriggerStore,
    job_consumer,
)
from daemon.stores.cold.settling import settle
from forebay.ids import format_item_id
from forebay.run import Run, read_head, take_items
from tests.conformance.cold_keys import offer
from tests.conformance.cold_stores import (
    START_MS,
    ColdStores,
    acquire,
    check_books,
    new_row,
    number,
    part_of,
    put,
)

LOCK = b"J" * 16
ME, OTHER = b"daemon of tests.", b"another daemon.."
INTERVAL_MS = 1000


class TriggerStores(ColdStores, Protocol):
    @property
    def triggers(self) -> TriggerStore: ...

    @property
    def items(self) -> ColdItems: ...


def a_claim(items: int = 100, **given: Any) -> Claim:
    given.setdefault("jobs_max", 10)
    given.setdefault("run_id", number())
    return Claim("q", "jobs", items, priority=3, **given)


async def poll(
    stores: TriggerStores, claim: Claim | None = None, holder: bytes = ME, **given: Any
) -> Polled:
    given.setdefault("is_forced", True)
    polled = await stores.triggers.poll(Poll("t", holder, 30.0, INTERVAL_MS, claim, **given))
    await check_books(stores)
    return polled


async def make(stores: TriggerStores, items: int = 100, **given: Any) -> TriggerJob:
    made = (await poll(stores, a_claim(items, **given))).made
    assert made is not None
    return made


async def the_job(stores: TriggerStores, lock: bytes = LOCK) -> tuple[ColdRow, Any]:
    """The one job that is due, acquired, and what it says."""
    (row,) = await acquire(stores, lock, queue="jobs")
    return row, json.loads(Run(row.head, row.data).payloads()[0])


class Watch:
    """What a daemon's triggers would say, and are told."""

    def __init__(self) -> None:
        self.limit = 8
        self.is_late = False
        self.ends: dict[bytes, JobEnd] = {}

    def retries_max(self, _: str) -> int:
        return self.limit

    def is_overdue(self, _: TriggerJob, __: int) -> bool:
        return self.is_late

    def ended(self, end: JobEnd) -> None:
        assert end.job.run_id not in self.ends
        self.ends[end.job.run_id] = end


_WATCHES: WeakKeyDictionary[TriggerStores, Watch] = WeakKeyDictionary()


def watch(stores: TriggerStores) -> Watch:
    """The one of these stores, whichever life of theirs it is."""
    found = _WATCHES.setdefault(stores, Watch())
    stores.triggers.watch(found)
    return found


async def settle_job(stores: TriggerStores, *, is_dead: bool = False) -> None:
    watch(stores)
    await finish_job(stores, is_dead=is_dead)


async def finish_job(stores: TriggerStores, *, is_dead: bool = False) -> None:
    row, _ = await the_job(stores)
    if is_dead:
        errors = (ItemError(1, START_MS, "it broke", "business"),)
        letter = part_of(row, 1, is_dead=True, attempt=1, errors=errors)
        outcome = RowOutcome(row.row, LOCK, moved=(letter,), moved_bits=1)
    else:
        outcome = RowOutcome(row.row, LOCK, delivered=1)
    assert await stores.cold.settle([outcome]) == [True]


async def end(stores: TriggerStores, job: TriggerJob) -> str | None:
    ended = await ending(stores, job)
    return None if ended is None else ended.fate


async def ending(stores: TriggerStores, job: TriggerJob) -> JobEnd | None:
    """How the job has ended: in one transaction with its outcome."""
    ended = watch(stores).ends.get(job.run_id)
    is_listed = job.run_id in {one.run_id for one in (await stores.triggers.jobs()).jobs}
    assert is_listed is (ended is None)
    await check_books(stores)
    return ended


async def die(stores: TriggerStores, retries_max: int, items: int = 100) -> JobEnd:
    """A job is made, and dies."""
    job = await make(stores, items)
    watch(stores).limit = retries_max
    await settle_job(stores, is_dead=True)
    ended = await ending(stores, job)
    assert ended is not None
    assert ended.fate == "dead"
    return ended


async def held(stores: TriggerStores, queue: str = "q") -> tuple[int, int]:
    """How many items, and how many of them are due."""
    total = (await stores.cold.totals())[queue].held
    rows = await acquire(stores, b"?" * 16, queue=queue)
    await stores.cold.release(b"?" * 16, [row.row for row in rows])
    return total, sum(row.bits.bit_count() for row in rows)


class TriggerSuite:
    async def test_a_poll_claims_a_batch_and_makes_one_job_of_it(
        self, stores: TriggerStores
    ) -> None:
        first, second = new_row(3), new_row(2)
        await put(stores, first, second)
        made = await make(stores, headers={"team": "a"}, flow="f", action="a")
        assert (made.trigger, made.queue, made.target, made.items) == ("t", "q", "jobs", 5)
        assert await held(stores) == (5, 0)
        row, said = await the_job(stores)
        ids = [
            format_item_id(r.head.run_id, i) for r in (first, second) for i in range(r.head.count)
        ]
        assert said == {"trigger": "t", "queue": "q", "ids": ids, "count": 5}
        assert format_item_id(row.head.run_id, 0) == made.id
        assert (row.head.priority, row.head.flow, row.head.action) == (3, "f", "a")
        assert {"team": "a", "trigger": "t"}.items() <= row.head.headers().items()
        assert (await stores.triggers.jobs()).jobs == [made]

    async def test_a_batch_is_exact_though_rows_are_longer(self, stores: TriggerStores) -> None:
        row = new_row(7)
        await put(stores, row, new_row(2))
        ids = []
        for wanted in (2, 4, 100):
            job = await make(stores, wanted)
            cold_row, said = await the_job(stores)
            assert said["count"] == job.items
            ids.append(said["ids"])
            watch(stores)
            await stores.cold.settle([RowOutcome(cold_row.row, LOCK, delivered=1)])
            assert await end(stores, job) == "done"
        assert [len(each) for each in ids] == [2, 4, 3]
        assert [*ids[0], *ids[1], ids[2][0]] == [
            format_item_id(row.head.run_id, i) for i in range(7)
        ]
        totals = (await stores.cold.totals())["q"]
        assert (totals.delivered, totals.held, totals.runs) == (9, 0, 0)
        assert await stores.bodies() == set()

    async def test_the_next_row_is_cut_where_the_first_ones_leave_room(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(2), new_row(3), new_row(9))
        assert (await make(stores, 7)).items == 7
        assert await held(stores) == (14, 7)
        # A row of the claim that goes back joins the others at its old place.
        assert (await stores.cold.totals())["q"].runs == 4

    async def test_nothing_due_makes_no_job(self, stores: TriggerStores) -> None:
        await put(stores, new_row(2, row_due_ms=START_MS + 50))
        assert await poll(stores, a_claim()) == Polled(True, INTERVAL_MS / 1000, None)
        assert (await stores.triggers.jobs()).jobs == []
        assert "jobs" not in await stores.cold.totals()
        stores.advance(50)
        assert (await make(stores)).items == 2

    async def test_flows_that_are_paused_are_left_out(self, stores: TriggerStores) -> None:
        await put(stores, new_row(2), new_row(1, flow="paused"))
        assert (await make(stores, except_flows=frozenset({"paused"}))).items == 2

    async def test_what_was_claimed_is_delivered_when_the_job_is(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(3))
        job = await make(stores)
        assert await end(stores, job) is None
        await settle_job(stores)
        assert await end(stores, job) == "done"
        assert await stores.cold.receipt(job.run_id) == ColdReceipt()
        totals = await stores.cold.totals()
        assert (totals["q"].delivered, totals["q"].held) == (3, 0)
        assert (totals["jobs"].delivered, totals["jobs"].held) == (1, 0)
        assert await stores.cold.streams() == []
        assert await stores.bodies() == set()

    async def test_a_dead_job_gives_its_items_back_with_an_attempt_more(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(3))
        job = await make(stores, 2)
        await settle_job(stores, is_dead=True)
        assert await end(stores, job) == "dead"
        assert await held(stores) == (3, 3)
        assert sorted(row.attempt for row in await acquire(stores)) == [0, 1]
        # The letter says why; what it claimed may be in another job.
        assert (await stores.cold.totals())["jobs"].dead == 1

    async def test_items_of_a_dead_job_remember_it(self, stores: TriggerStores) -> None:
        row = new_row(2)
        await put(stores, row)
        ended = await die(stores, 8)
        (sight,) = await stores.items.find(row.head.run_id, 1)
        (error,) = sight.errors
        assert f"trigger t: job {ended.job.id} is dead: it broke" in error.text
        assert (error.attempt, error.failure_reason) == (1, "business")
        assert error.locked_by == job_consumer(ended.job.run_id)
        assert (ended.dead, sight.state, sight.attempt, sight.job) == (0, "COLD_QUEUED", 1, "")

    async def test_items_that_have_had_too_many_dead_jobs_are_dead_letters(
        self, stores: TriggerStores
    ) -> None:
        row = new_row(3)
        await put(stores, row)
        for _ in range(2):
            assert (await die(stores, 2)).dead == 0
        # One that has failed less often is in the last job, too.
        fresh = new_row(2)
        await put(stores, fresh)
        ended = await die(stores, 2)
        ids = tuple(format_item_id(row.head.run_id, index) for index in range(3))
        assert (ended.dead, ended.dead_ids) == (3, ids)
        assert f"job {ended.job.id} is dead: it broke" in ended.error
        assert await held(stores) == (2, 2)
        totals = (await stores.cold.totals())["q"]
        assert (totals.dead, totals.held, totals.runs) == (3, 2, 1)
        page = await stores.dead.find(DeadFilter(queue="q"), 10, payloads=True)
        assert sorted(letter.id for letter in page.letters) == sorted(ids)
        for letter in page.letters:
            assert [error.attempt for error in letter.errors] == [1, 2, 3]
            assert "trigger t: job " in letter.errors[-1].text
            assert (letter.attempt, letter.died_ms) == (3, stores.now_ms())
        found = await stores.dead.find(DeadFilter(error="IT BROKE", queue="q"), 10)
        assert len(found.letters) == 3

    async def test_an_item_that_was_given_up_waits_again_when_an_operator_says_so(
        self, stores: TriggerStores
    ) -> None:
        row = new_row(3)
        await put(stores, row)
        await die(stores, 0)
        retried = await stores.dead.retry(DeadFilter(queue="q"), 10)
        assert (retried.done, retried.spent) == (3, 0)
        await check_books(stores)
        assert await held(stores) == (3, 3)
        job = await make(stores)
        assert job.items == 3
        await settle_job(stores)
        assert await end(stores, job) == "done"
        await stores.dead.remove(DeadFilter(), 10)
        assert await stores.bodies() == set()

    async def test_only_what_its_job_had_claimed_is_given_up(self, stores: TriggerStores) -> None:
        """A row that was cut: its other part has another life."""
        row = new_row(5)
        await put(stores, row)
        assert (await die(stores, 0, items=2)).dead == 2
        assert await held(stores) == (3, 3)
        assert [sight.state for sight in await stores.items.find(row.head.run_id, 1)] == ["FAILED"]
        assert [sight.state for sight in await stores.items.find(row.head.run_id, 2)] == [
            "COLD_QUEUED"
        ]

    async def test_what_cannot_be_read_is_set_aside_and_the_rest_given_up(
        self, stores: TriggerStores
    ) -> None:
        bad, good = new_row(2), new_row(1)
        await put(stores, bad, good)
        job = await make(stores)
        await stores.damage_body(bad.head.run_id)
        watch(stores).limit = 0
        await settle_job(stores, is_dead=True)
        ended = await ending(stores, job)
        assert ended is not None
        assert ended.dead == 1
        totals = (await stores.cold.totals())["q"]
        assert (totals.dead, totals.held, totals.lost) == (1, 0, 2)
        assert await acquire(stores) == []

    async def test_a_crash_leaves_what_a_dead_job_gave_up(self, stores: TriggerStores) -> None:
        await put(stores, new_row(3))
        await die(stores, 0)
        await stores.crash()
        assert (await stores.triggers.jobs()).jobs == []
        totals = await stores.cold.totals()
        assert (totals["q"].dead, totals["q"].held, totals["jobs"].dead) == (3, 0, 1)
        await check_books(stores)

    async def test_an_outcome_that_an_older_version_recorded_ends_its_job(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(3))
        job = await make(stores)
        (row,) = await acquire(stores, LOCK, queue="jobs")
        cold: Any = stores.cold
        outcome = RowOutcome(row.row, LOCK, delivered=1)
        # As a version did that ended jobs in a transaction of their own.
        await cold._steps._db.write(lambda con: settle(con, [outcome], keep_nothing, no_keys))
        (seen,) = (await stores.triggers.jobs()).jobs
        assert seen.fate == "done"
        assert await held(stores) == (3, 0)
        watch(stores)
        await stores.triggers.end(job.run_id)
        assert await end(stores, job) == "done"
        assert (await stores.cold.totals())["q"].delivered == 3

    async def test_keys_stay_with_items_that_were_given_up(self, stores: TriggerStores) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("reject"))
        await stores.cold.offer([offer(b"k")])
        await die(stores, 0)
        holder = await stores.cold.key("q", b"k")
        assert holder is not None
        assert holder.phase == "dead"

    async def test_jobs_are_read_in_pages(self, stores: TriggerStores) -> None:
        await put(stores, new_row(5))
        made = [await make(stores, 1) for _ in range(5)]
        found: list[TriggerJob] = []
        after = b""
        for jobs in (2, 2, 1):
            page = await stores.triggers.jobs(after, 2)
            assert len(page.jobs) == jobs
            found += page.jobs
            after = page.after or b""
        assert found == sorted(made)
        assert page.after is None

    async def test_a_dead_job_whose_items_were_given_back_is_not_tried_again(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(3))
        job = await make(stores)
        await settle_job(stores, is_dead=True)
        assert await end(stores, job) == "dead"
        # They are in another job, and must not be in two.
        again = await make(stores)
        await settle_job(stores)
        for which in (DeadFilter(ids=(job.id,)), DeadFilter()):
            tried = await stores.dead.retry(which, 10)
            assert (tried.done, tried.spent, tried.queues) == (0, 1, frozenset())
        assert await acquire(stores, queue="jobs") == []
        await check_books(stores)
        # Changing it makes it no other job.
        assert await stores.dead.edit(job.id, b"{}")
        assert (await stores.dead.retry(DeadFilter(), 10)).done == 0
        assert await end(stores, again) == "done"
        assert (await stores.dead.remove(DeadFilter(), 10)).done == 1
        await check_books(stores)
        assert await stores.bodies() == set()

    async def test_a_deleted_job_gives_its_items_back(self, stores: TriggerStores) -> None:
        await put(stores, new_row(3))
        for way in ("delete", "purge"):
            job = await make(stores)
            watch(stores)
            if way == "purge":
                assert await stores.items.purge("jobs", 10) == 1
            else:
                (row,) = await acquire(stores, LOCK, queue="jobs")
                assert await stores.items.delete(row.row, 1, LOCK)
            assert await end(stores, job) == "deleted"
            assert await held(stores) == (3, 3)
        assert {row.attempt for row in await acquire(stores)} == {0}

    async def test_items_of_a_job_that_stalls_fail_and_are_dead_letters_in_the_end(
        self, stores: TriggerStores
    ) -> None:
        """R39: nobody finishes the job before its lease ends, and the daemon takes it back."""
        row = new_row(2)
        await put(stores, row)
        saw = watch(stores)
        saw.limit, saw.is_late = 1, True
        error = ""
        for dead in (0, 2):
            job = await make(stores)
            assert await stores.items.purge("jobs", 10) == 1
            ended = await ending(stores, job)
            assert ended is not None
            assert (ended.fate, ended.dead) == ("stalled", dead)
            error = ended.error
        (sight,) = await stores.items.find(row.head.run_id, 1)
        assert (sight.state, sight.attempt) == ("FAILED", 2)
        assert [error.attempt for error in sight.errors] == [1, 2]
        assert f"job {job.id} was not done when its lease ended" in sight.errors[-1].text
        assert f"job {job.id} was not done when its lease ended" in error
        assert await held(stores) == (0, 0)

    async def test_a_job_of_jobs_ends_them_with_itself(self, stores: TriggerStores) -> None:
        """The jobs of one trigger are claimed by another one."""
        await put(stores, new_row(3))
        first = await make(stores)
        claim = Claim("jobs", "more", 10, 10, 3, number())
        polled = await stores.triggers.poll(Poll("u", ME, 30.0, INTERVAL_MS, claim))
        assert polled.made is not None
        watch(stores)
        (row,) = await acquire(stores, LOCK, queue="more")
        assert await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=1)]) == [True]
        assert await end(stores, polled.made) == "done"
        assert await end(stores, first) == "done"
        assert (await stores.cold.totals())["q"].delivered == 3
        assert await stores.bodies() == set()

    async def test_a_reader_that_acknowledges_a_job_ends_it(self, stores: TriggerStores) -> None:
        await put(stores, new_row(3))
        job = await make(stores)
        watch(stores)
        await stores.cold.claim("jobs", "reader", 0, 10)
        await stores.cold.claim("jobs", "reader", 1, 0)
        assert await end(stores, job) == "done"
        assert (await stores.cold.totals())["q"].delivered == 3

    async def test_jobs_that_have_died_are_known_by_their_letters(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(3))
        ended = await die(stores, 8)
        other = await make(stores)
        assert await stores.triggers.died([ended.job.id, other.id]) == {ended.job.id}

    async def test_a_job_that_cannot_be_read_gives_its_items_back(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(3))
        job = await make(stores)
        await stores.damage_body(job.run_id)
        watch(stores)
        assert await acquire(stores, LOCK, queue="jobs") == []
        assert await end(stores, job) == "unreadable"
        assert await held(stores) == (3, 3)

    async def test_one_daemon_at_a_time_has_the_lease(self, stores: TriggerStores) -> None:
        await put(stores, new_row(3))
        assert await poll(stores) == Polled(True)
        assert await poll(stores, a_claim(), OTHER) == Polled(False)
        stores.advance(20_000)
        assert (await poll(stores)).is_ours
        stores.advance(20_000)
        assert await poll(stores, a_claim(), OTHER) == Polled(False)
        stores.advance(10_000)
        assert (await poll(stores, a_claim(2), OTHER)).made is not None
        assert await poll(stores, a_claim()) == Polled(False)
        await stores.triggers.let_go("t", ME)
        assert await poll(stores, a_claim()) == Polled(False)
        await stores.triggers.let_go("t", OTHER)
        assert (await poll(stores, a_claim())).made is not None

    async def test_polls_keep_their_interval_whoever_polls(self, stores: TriggerStores) -> None:
        await put(stores, new_row(1))
        assert (await poll(stores, a_claim(), is_forced=False)).made is not None
        await put(stores, new_row(1))
        await stores.triggers.let_go("t", ME)
        stores.advance(400)
        assert await poll(stores, a_claim(), OTHER, is_forced=False) == Polled(True, 0.6)
        stores.advance(600)
        assert (await poll(stores, a_claim(), OTHER, is_forced=False)).made is not None

    async def test_a_trigger_that_is_paused_claims_nothing_whoever_polls(
        self, stores: TriggerStores
    ) -> None:
        await put(stores, new_row(2))
        await stores.triggers.pause("t", is_paused=True)
        assert await poll(stores, a_claim(), is_forced=False) == Polled(True, is_paused=True)
        await stores.reopen()
        stores.advance(60_000)
        paused = await poll(stores, a_claim(), OTHER, is_forced=False)
        assert paused == Polled(True, is_paused=True)
        assert (await poll(stores, a_claim(1), OTHER)).made is not None
        await stores.triggers.pause("t", is_paused=False)
        stores.advance(INTERVAL_MS)
        assert (await poll(stores, a_claim(), OTHER, is_forced=False)).made is not None

    async def test_no_more_jobs_than_allowed_are_live(self, stores: TriggerStores) -> None:
        await put(stores, new_row(3))
        job = await make(stores, 1, jobs_max=1)
        assert await poll(stores, a_claim(1, jobs_max=1)) == Polled(True, INTERVAL_MS / 1000)
        stores.advance(INTERVAL_MS)
        # It is time, and there is no room: at once when there is.
        assert await poll(stores, a_claim(1, jobs_max=1), is_forced=False) == Polled(True)
        await settle_job(stores)
        await end(stores, job)
        assert (await poll(stores, a_claim(1, jobs_max=1), is_forced=False)).made is not None

    async def test_a_crash_leaves_jobs_and_claims_together(self, stores: TriggerStores) -> None:
        await put(stores, new_row(3))
        job = await make(stores, 2)
        await stores.crash()
        assert (await stores.triggers.jobs()).jobs == [job]
        assert await held(stores) == (3, 1)
        await settle_job(stores)
        await stores.cold.sync()
        await stores.crash()
        assert await end(stores, job) == "done"
        assert await held(stores) == (1, 1)

    async def test_ids_of_parts_are_those_of_the_items(self, stores: TriggerStores) -> None:
        whole = new_row(4)
        data = take_items(Run(whole.head, whole.data), [1, 3])
        part = new_row(2)
        await put(stores, type(part)(part.row, read_head(data), data, 0b11))
        await make(stores)
        _, said = await the_job(stores)
        assert said["ids"] == [format_item_id(whole.head.run_id, i) for i in (1, 3)]

    async def test_a_part_that_cannot_be_read_is_set_aside(self, stores: TriggerStores) -> None:
        whole = new_row(4)
        data = take_items(Run(whole.head, whole.data), [1, 3])
        head = read_head(data)
        await put(stores, type(whole)(whole.row, head, data, 0b11))
        await stores.damage_body(head.run_id)
        assert (await poll(stores, a_claim())).made is None
        await put(stores, new_row(1))
        assert (await make(stores)).items == 1

    async def test_an_operator_who_drops_a_claim_has_given_it_back(
        self, stores: TriggerStores
    ) -> None:
        row = new_row(3)
        await put(stores, row)
        job = await make(stores)
        (sight,) = await stores.items.find(row.head.run_id, 0)
        assert (sight.state, sight.job) == ("CLAIMED", job.id)
        assert await stores.cold.drop_stream("q", job_consumer(job.run_id)) == 3
        (sight,) = await stores.items.find(row.head.run_id, 0)
        assert (sight.state, sight.job) == ("COLD_QUEUED", "")
        await settle_job(stores)
        assert await end(stores, job) == "done"
        assert await held(stores) == (3, 3)

    async def test_keys_are_let_go_with_their_items(self, stores: TriggerStores) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("reject"))
        await stores.cold.offer([offer(b"k")])
        job = await make(stores)
        assert await stores.cold.key("q", b"k") is not None
        await settle_job(stores)
        await end(stores, job)
        assert await stores.cold.key("q", b"k") is None

    async def test_history_says_which_job_it_was(self, stores: TriggerStores) -> None:
        stores.cold.keep_history(lambda _: "all")
        await put(stores, new_row(2))
        job = await make(stores)
        await settle_job(stores)
        await end(stores, job)
        past = await stores.cold.history("q", "", 10, 1 << 20)
        assert [(row.outcome, row.job) for row in past.rows] == [("delivered", job.id)]
