"""Two daemons and one server: which rows are there, who has them, and what comes back."""

import random
from dataclasses import replace

import pytest
import trio

from actors.model.slices import InCold, LentRun
from actors.ports.tiers import Ending, Fill, Leased, Limits, StoreRefused, StoreUnavailable
from daemon.stores.valkey import warm
from tests.conformance.warm_rig import (
    EPOCH,
    PLENTY,
    make_row,
    make_run,
    part,
    places,
    views,
    whole,
)
from tests.daemon.stores.valkey.fleet import (
    Fleet,
    all_of,
    all_rows_of,
    fleet,
    items_of,
    row_in,
    some,
    span,
)
from tests.eventually import eventually

# The rows.


async def test_row_is_known_to_all() -> None:
    async with fleet() as (_, (one, two)):
        run = make_row(1, 2)
        await one.enter("q", [whole(run)], PLENTY)
        [leased] = await all_of(two)
        assert leased.slice.run.owner == run.owner == InCold(bytes(15) + b"\x01", EPOCH)
        assert bytes(leased.slice.run.data) == run.data
        await two.end("q", [Ending(leased.token, (part(leased.slice.run, 1, 2),))])
        [again] = await all_of(one)
        assert again.slice.run.owner == run.owner


async def test_every_item_is_leased_once() -> None:
    rng = random.Random(7)
    async with fleet() as (_, warms):
        for number in range(60):
            run = make_row(number, rng.randrange(1, 40), priority=rng.randrange(3))
            await warms[number % 2].enter("q", [whole(run)], PLENTY)
        held = (await warms[0].fill("q")).items
        taken: list[Leased] = []

        async def work(at: int) -> None:
            while leased := await warms[at % 2].lease("q", rng.randrange(1, 60), 10**9, 30.0):
                taken.extend(leased)

        async with trio.open_nursery() as nursery:
            for at in range(6):
                nursery.start_soon(work, at)
        items = items_of(taken)
        assert len(items) == len(set(items)) == held
        assert len({leased.token for leased in taken}) == len(taken)
        assert (await warms[1].fill("q")).leased == held


async def test_slice_that_is_entered_again_is_there_once() -> None:
    async with fleet() as (found, (one, two)):
        run = make_row(1, 10)
        slices = [span(run, 0, 4), replace(span(run, 4, 6), due_ms=found.time_ms + 1000)]
        for each in (one, two):
            entered = await each.enter("q", slices, PLENTY)
            assert (entered.rest, entered.fill.items, entered.fill.scheduled) == ([], 6, 2)
        await two.lease("q", 2, 10**9, 30.0)
        for each in (one, two):
            entered = await each.enter("q", [whole(run)], PLENTY)
            assert (entered.rest, entered.fill.items, entered.fill.leased) == ([], 10, 2)
        assert places(await all_of(one)) == [(1, 2, 4), (1, 6, 10)]
        found.time_ms += 1000
        assert places(await all_of(one)) == [(1, 4, 6)]
        assert (await one.enter("q", [whole(run)], PLENTY)).fill.leased == 10
        assert await all_of(two) == []


async def test_slice_that_is_twice_in_a_batch_enters_once() -> None:
    async with fleet(1) as (_, (one,)):
        run = make_row(1, 10)
        slices = [span(run, 0, 4), span(run, 2, 6), span(run, 6, 7), whole(run), whole(run)]
        assert (await one.enter("q", slices, PLENTY)).fill.items == 10
        assert places(await all_of(one)) == [(1, 0, 4), (1, 4, 6), (1, 6, 7), (1, 7, 10)]


async def test_only_what_is_missing_of_a_row_enters() -> None:
    async with fleet() as (_, (one, two)):
        run = make_row(1, 10)
        await one.enter("q", [span(run, 0, 4)], PLENTY)
        await two.lease("q", 2, 10**9, 30.0)
        entered = await one.enter("q", [some(run, 1, 3, 5, 6, 9), whole(make_row(2, 1))], PLENTY)
        assert (entered.rest, entered.fill.items) == ([], 8)
        assert (await one.enter("q", [whole(run)], Limits(9, 10**9))).rest[0].bits == 0b110000000
        again = await all_of(two)
        assert [each.slice.bits for each in again] == [0b1100, 0b10000, 0b1001100000, 1]


async def test_rest_of_a_batch_has_nothing_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the rest are free again: an item that is there must not be among them."""
    monkeypatch.setattr(warm, "ENTER_SLICES", 3)
    async with fleet(1) as (_, (one,)):
        there = [whole(make_row(number, 2)) for number in (2, 4, 6)]
        await one.enter("q", [*there, part(make_row(8, 2), 0, 1)], PLENTY)
        slices = [whole(make_row(number, 2)) for number in range(10)]
        entered = await one.enter("q", slices, Limits(10, 10**9))
        assert places(entered.rest) == [
            *((1, 1, 2), (3, 0, 2), (5, 0, 2), (7, 0, 2), (8, 1, 2), (9, 0, 2)),
        ]
        assert entered.fill.items == 10


async def test_rows_with_the_same_run_do_not_hide_each_other() -> None:
    async with fleet() as (_, (one, two)):
        rows = [make_run(1, 2, owner=InCold(bytes([at]) * 16, EPOCH)) for at in range(2)]
        await one.enter("q", [whole(rows[0])], PLENTY)
        entered = await two.enter("q", [whole(rows[1])], PLENTY)
        assert entered.fill.items == 4
        owners = [leased.slice.run.owner for leased in await all_of(one)]
        assert owners == [row.owner for row in rows]


# What is refused.


def other_lock(number: int) -> LentRun:
    return make_run(number, 2, owner=InCold(bytes(16), b"o" * 16))


@pytest.mark.parametrize("at", [0, 2, 5])
async def test_rows_under_another_epoch_are_refused(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "ENTER_SLICES", 4)
    async with fleet(1) as (found, (one,)):
        runs = [make_row(number, 2) for number in range(6)]
        runs[at] = other_lock(at)
        with pytest.raises(StoreRefused, match="epoch"):
            await one.enter("q", [whole(run) for run in runs], PLENTY)
        with pytest.raises(StoreRefused, match="epoch"):
            await one.enter("q", [whole(other_lock(1))], PLENTY)
        assert await one.fill("q") == Fill()
        assert found.keys() == []


async def test_queue_without_an_epoch_takes_nothing() -> None:
    async with fleet(1) as (found, (one,)):
        for owner in (InCold(bytes(16), EPOCH), InCold(bytes(16), bytes(16))):
            with pytest.raises(StoreRefused, match="epoch"):
                await one.enter("new", [whole(make_run(1, 2, owner=owner))], PLENTY)
        assert found.keys() == []
        assert await one.fills() == {}


async def test_rows_that_come_too_late_are_refused() -> None:
    async with fleet(1) as (found, (one,)):
        before_ms = found.time_ms
        await one.enter("q", [whole(make_row(1, 2))], PLENTY, before_ms)
        found.time_ms += 1
        with pytest.raises(StoreRefused, match="too late"):
            await one.enter("q", [whole(make_row(2, 2))], PLENTY, before_ms)
        assert places(await all_of(one)) == [(1, 0, 2)]
        assert (await one.fill("q")).items == 2


async def test_batch_that_is_refused_after_its_first_portion_is_not_called_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of a batch that was refused are free again: none of them may be there."""
    monkeypatch.setattr(warm, "ENTER_SLICES", 2)
    async with fleet(1) as (found, (one,)):
        clock = iter([found.time_ms, found.time_ms + 1])
        monkeypatch.setattr(one, "_now_ms", lambda: next(clock))
        slices = [whole(make_row(number, 2)) for number in range(4)]
        with pytest.raises(StoreUnavailable, match="too late") as problem:
            await one.enter("q", slices, PLENTY, found.time_ms)
        assert not isinstance(problem.value, StoreRefused)
        monkeypatch.undo()
        assert places(await all_of(one)) == [(0, 0, 2), (1, 0, 2)]


async def test_runs_of_journals_are_refused() -> None:
    async with fleet(1) as (_, (one,)):
        with pytest.raises(ValueError, match="only rows of the cold store"):
            await one.enter("q", [whole(make_row(1, 2)), whole(make_run(2, 2))], PLENTY)
        assert await one.fill("q") == Fill()


# Leases.


async def test_lease_that_moved_on_is_fenced() -> None:
    async with fleet() as (found, (one, two)):
        await one.enter("q", [whole(make_row(1, 2))], PLENTY)
        [late] = await all_of(two, lease_s=1.0)
        found.time_ms += 1000
        assert await one.expire() == {"q": 2}
        [now] = await all_of(one)
        assert await two.end("q", [Ending(late.token, (late.slice,))]) == [False]
        assert await two.extend("q", [late.token], 9.0) == [False]
        assert await one.end("q", [Ending(now.token)]) == [True]
        assert found.keys() == []


async def test_slice_whose_lease_ran_out_says_so() -> None:
    async with fleet() as (found, (one, two)):
        await one.enter("q", [whole(make_row(1, 4)), whole(make_row(2, 4))], PLENTY)
        _, (kept, _) = await all_rows_of(two, lease_s=1.0)
        assert await two.extend("q", [kept.token], 10.0) == [True]
        found.time_ms += 1000
        assert await one.expire() == {"q": 4}
        assert await two.end("q", [Ending(kept.token, (kept.slice,))]) == [True]
        # Also if it is cut, and until it has ended: a daemon that could not look into its row puts
        # it back as it was.
        [(half, has_run_out)] = await one.lease_rows("q", 2, 10**9, 30.0, frozenset())
        assert (places([half]), has_run_out) == ([(1, 0, 2)], True)
        assert await one.end("q", [Ending(half.token, (half.slice,))]) == [True]
        leased = await all_rows_of(one)
        assert places([each for each, _ in leased]) == [(1, 0, 2), (1, 2, 4), (2, 0, 4)]
        assert [has_run_out for _, has_run_out in leased] == [True, True, False]


async def test_slice_that_was_ended_does_not_say_that_its_lease_ran_out() -> None:
    async with fleet() as (found, (one, two)):
        run = make_row(1, 4)
        await one.enter("q", [whole(run)], PLENTY)
        [(first, has_run_out)] = await all_rows_of(two, lease_s=1.0)
        assert not has_run_out
        retry = replace(part(run, 1, 3), attempt=1, due_ms=found.time_ms + 500)
        assert await two.end("q", [Ending(first.token, (retry,))]) == [True]
        found.time_ms += 1000
        assert await one.expire() == {}
        [(second, has_run_out)] = await all_rows_of(one)
        assert (views([second]), has_run_out) == (views([retry]), False)
        # Nor does a row that is entered anew after it was taken out.
        await two.end("q", [Ending(second.token)])
        await one.enter("q", [whole(run)], PLENTY)
        assert [has_run_out for _, has_run_out in await all_rows_of(two)] == [False]


async def test_queues_do_not_give_the_same_tokens() -> None:
    """Even if their epochs begin alike."""
    async with fleet(1) as (_, (one,)):
        tokens: set[int] = set()
        for queue in ("a", "b", "c"):
            await one.enter(queue, [whole(await row_in(one, 1, 1, queue=queue))], PLENTY)
            [leased] = await one.lease(queue, 1, 10**9, 30.0)
            tokens.add(leased.token % 2**40)
        assert len(tokens) == 3


# Epochs.


async def test_epoch_is_the_queues_and_stays() -> None:
    async with fleet() as (_, (one, two)):
        epoch = await one.epoch("new")
        assert await two.epoch("new") == epoch != await one.epoch("other")
        await two.enter("new", [whole(await row_in(two, 1, 2, queue="new"))], PLENTY)
        assert set(await one.fills()) == {"new"}
        [leased] = await one.lease("new", 9, 10**9, 30.0)
        await one.end("new", [Ending(leased.token)])
        assert await two.epoch("new") == epoch


async def test_daemons_that_ask_at_once_get_one_epoch() -> None:
    async with fleet() as (_, warms):
        found: list[bytes] = []

        async def ask(at: int) -> None:
            found.append(await warms[at % 2].epoch("new"))

        async with trio.open_nursery() as nursery:
            for at in range(10):
                nursery.start_soon(ask, at)
        [epoch] = set(found)
        assert len(epoch) == 16
        assert 0 < epoch[0] < 128


async def test_server_that_forgot_has_a_new_epoch_and_old_tokens_fit_nothing() -> None:
    async with fleet() as (found, (one, two)):
        run = make_row(1, 4)
        await one.enter("q", [whole(run)], PLENTY)
        [old] = await one.lease("q", 2, 10**9, 30.0)
        forget(found)
        assert await all_of(one) == []
        assert (await two.present("q", [bytes(15) + b"\x01"])) == (b"", [0])
        epoch = await two.epoch("q")
        assert epoch == await one.epoch("q") != EPOCH
        with pytest.raises(StoreRefused, match="epoch"):
            await one.enter("q", [whole(run)], PLENTY)
        # The same row, from the cold store.
        again = await row_in(two, 1, 4)
        await two.enter("q", [whole(again)], PLENTY)
        [now] = await one.lease("q", 2, 10**9, 30.0)
        assert await one.end("q", [Ending(old.token, (old.slice,))]) == [False]
        assert await two.end("q", [Ending(old.token)]) == [False]
        assert await one.extend("q", [old.token], 30.0) == [False]
        # It had the bytes of this run, and still says what the row is locked under now.
        assert now.slice.run.owner == again.owner == InCold(bytes(15) + b"\x01", epoch)
        assert await one.end("q", [Ending(now.token)]) == [True]
        [rest] = await all_of(one)
        assert rest.slice.run.owner == again.owner


async def test_time_of_the_server_is_known_with_an_epoch() -> None:
    """Rows are locked next, and must enter by a time on that clock."""
    async with fleet() as (found, (one, _)):
        late = found.add()
        await late.epoch("q")
        assert late.server_ms() >= found.time_ms
        deadline_ms = late.server_ms() + 10_000
        await late.enter("q", [whole(make_row(1, 2))], PLENTY, deadline_ms)
        assert (await one.fill("q")).items == 2


# What is there.


async def test_present_tells_which_items_of_which_rows_are_there() -> None:
    async with fleet() as (found, (one, two)):
        owners = [InCold(row, EPOCH) for row in (b"\x00" * 16, b"a" * 16, b"\xff" * 16)]
        highest = 2**128 - 1
        runs = [make_run(highest, 9, owner=owner) for owner in owners]
        later = replace(some(runs[1], 0, 4), due_ms=found.time_ms + 1000)
        slices = [some(run, at, at + 3) for run in runs for at in (1, 2)]
        await one.enter("q", [*slices, later], PLENTY)
        [leased] = await two.lease("q", 2, 10**9, 30.0)
        await two.lease("q", 1, 10**9, 30.0)
        await two.end("q", [Ending(leased.token)])
        rows = [owner.row for owner in owners]
        unknown = [b"\x00" * 15 + b"\x01", b"`" + b"\xff" * 15, b"b" * 16]
        epoch, there = await two.present("q", [*rows, *unknown])
        assert epoch == EPOCH
        assert there == [0b100100, 0b110111, 0b110110, 0, 0, 0]
        assert await one.present("q", []) == (EPOCH, [])
        assert await one.present("unknown", rows) == (b"", [0, 0, 0])


async def test_withdraw_leaves_what_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "WITHDRAW_SLICES", 2)
    async with fleet() as (found, (one, two)):
        await one.enter("q", [whole(make_row(n, 2)) for n in (4, 1, 3, 2)], PLENTY)
        await two.enter("q", [whole(make_row(5, 2), due_ms=found.time_ms + 1)], PLENTY)
        [leased] = await two.lease("q", 1, 10**9, 30.0)
        assert places(await one.withdraw("q")) == [
            *((1, 1, 2), (2, 0, 2), (3, 0, 2), (4, 0, 2), (5, 0, 2)),
        ]
        assert (await one.fill("q")).items == 1
        assert await one.withdraw("q") == []
        assert found.keys() == ["all", "leases", "runs", "slices"]
        assert await two.end("q", [Ending(leased.token)]) == [True]
        assert found.keys() == []


async def test_big_batches_enter_in_portions_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "ENTER_SLICES", 3)
    async with fleet(1) as (_, (one,)):
        slices = [whole(make_row(number, 2)) for number in range(10)]
        entered = await one.enter("q", slices, Limits(15, 10**9))
        assert places(entered.rest) == [(7, 1, 2), (8, 0, 2), (9, 0, 2)]
        assert entered.fill.items == 15
        entered = await one.enter("q", entered.rest, PLENTY)
        assert views(await all_of(one)) == views(
            [*slices[:7], part(slices[7].run, 0, 1), part(slices[7].run, 1, 2), *slices[8:]]
        )


async def test_run_that_is_taken_in_parts_comes_once() -> None:
    async with fleet(1) as (found, (one,)):
        run = make_row(1, 100, item_size=5000)
        await one.enter("q", [whole(run)], PLENTY)
        taken: list[Leased] = []
        before = _sent_bytes(found)
        while leased := await one.lease("q", 10, 10**9, 30.0):
            taken += leased
        sent = _sent_bytes(found) - before
        assert len(run.data) <= sent < 2 * len(run.data)
        assert places(taken) == [(1, at, at + 10) for at in range(0, 100, 10)]
        assert all(bytes(each.slice.run.data) == run.data for each in taken)


async def test_nothing_remains_of_what_is_done() -> None:
    async with fleet() as (found, (one, two)):
        soon_ms = found.time_ms + 5000
        await one.enter("q", [whole(make_row(n, 3)) for n in range(5)], PLENTY)
        await two.enter("q", [whole(make_row(9, 3), due_ms=soon_ms)], PLENTY)
        assert len(found.keys()) == 5
        await one.end("q", [Ending(each.token) for each in await all_of(two)])
        found.time_ms = soon_ms
        await two.end("q", [Ending(each.token) for each in await all_of(two)])
        assert found.keys() == []
        assert await one.fill("q") == Fill()


# Turns.


async def test_turn_is_given_to_one_of_two_daemons() -> None:
    async with fleet() as (found, warms):
        turns: list[bool] = []

        async def ask(at: int) -> None:
            turns.append(await warms[at].take_turn(10**6))

        async with trio.open_nursery() as nursery:
            for at in range(2):
                nursery.start_soon(ask, at)
        assert sorted(turns) == [False, True]
        assert not await warms[0].take_turn(10**6)
        # Its time passes.
        found.server.command("PEXPIRE", f"{found.prefix}:turn", 1)
        assert await eventually(lambda: warms[1].take_turn(10**6))
        assert not await warms[0].take_turn(10**6)


async def test_turn_comes_again_after_its_time() -> None:
    async with fleet(1) as (_, (one,)):
        assert await one.take_turn(0.001)
        assert await eventually(lambda: one.take_turn(10**6))


def forget(found: Fleet) -> None:
    """As after FLUSHALL, but for the other tests of a server that is shared."""
    found.server.command("DEL", *found.server.command("KEYS", f"{found.prefix}:*"))


def _sent_bytes(found: Fleet) -> int:
    sent: int = found.server.command("INFO", "stats")["total_net_output_bytes"]
    return sent
