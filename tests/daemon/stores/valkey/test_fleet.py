"""Two daemons and one server: whose items these are, who has them, and what comes back."""

import random

import pytest
import trio

from actors.model.slices import Abroad, InCold, InJournal
from actors.ports.tiers import Ending, Fill, Leased, Limits
from daemon.stores.valkey import owner_side, warm
from tests.conformance.warm_rig import PLENTY, make_run, part, places, views, whole
from tests.daemon.stores.valkey.fleet import Fleet, all_of, daemon_id, fleet, items_of, some, span


async def test_owner_is_known_to_all() -> None:
    async with fleet() as (_, (one, two)):
        own, of_cold = make_run(1, 2), make_run(2, 2, owner=InCold(b"r" * 16, b"l" * 16))
        await one.enter("q", [whole(own), whole(of_cold)], PLENTY)
        first, second = await all_of(two)
        assert first.slice.run.owner == Abroad(daemon_id(1), token=1001, position=1)
        assert second.slice.run.owner == of_cold.owner
        assert bytes(first.slice.run.data) == own.data
        await two.end("q", [Ending(first.token, (part(first.slice.run, 1, 2),))])
        [again] = await all_of(one)
        assert again.slice.run.owner == own.owner == InJournal(1001, 1)


async def test_every_item_is_leased_once() -> None:
    rng = random.Random(7)
    async with fleet() as (_, warms):
        for number in range(60):
            run = make_run(number, rng.randrange(1, 40), priority=rng.randrange(3))
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


async def test_lease_that_moved_on_is_fenced_and_posts_nothing() -> None:
    async with fleet() as (found, (one, two)):
        await one.enter("q", [whole(make_run(1, 2))], PLENTY)
        [late] = await all_of(two, lease_s=1.0)
        found.time_ms += 1000
        assert await one.expire() == {"q": 2}
        [now] = await all_of(one)
        assert await two.end("q", [Ending(late.token, post=b"late")]) == [False]
        assert await two.extend("q", [late.token], 9.0) == [False]
        assert await one.mail("q") == []
        assert await one.end("q", [Ending(now.token)]) == [True]
        assert found.keys() == []


async def test_posts_arrive_once_in_order_and_stay_until_they_are_done() -> None:
    async with fleet() as (_, (one, two)):
        await one.enter("q", [span(make_run(1, 10), at, at + 1) for at in range(10)], PLENTY)
        leased = await all_of(two)
        await two.end("q", [Ending(each.token, post=b"%d" % n) for n, each in enumerate(leased)])
        assert await two.mail("q") == []
        posts = [b"%d" % n for n in range(10)]
        assert await one.mail("q") == await one.mail("q") == posts
        await one.mail_done("q", 4)
        # The answer was lost, and it is said again.
        await one.mail_done("q", 4)
        assert await one.mail("q") == posts[4:]
        await one.mail_done("q", 6)
        assert await one.mail("q") == []
        await one.mail_done("q", 0)


async def test_mail_is_read_a_thousand_posts_at_a_time() -> None:
    async with fleet() as (_, (one, two)):
        await one.enter("q", [span(make_run(1, 1500), at, at + 1) for at in range(1500)], PLENTY)
        leased = await all_of(two)
        await two.end("q", [Ending(each.token, post=b"%d" % n) for n, each in enumerate(leased)])
        first = await one.mail("q")
        await one.mail_done("q", len(first))
        second = await one.mail("q")
        assert (len(first), len(second)) == (1000, 500)
        assert first + second == [b"%d" % n for n in range(1500)]


async def test_daemon_finds_the_queues_where_it_has_something_after_a_restart() -> None:
    async with fleet() as (found, (one, two)):
        for queue in ("b", "a"):
            await one.enter(queue, [whole(make_run(1, 1))], PLENTY)
        await two.enter("c", [whole(make_run(1, 1))], PLENTY)
        assert await found.add(1).mail_queues() == ["a", "b", "q"]
        assert await found.add(2).mail_queues() == ["c", "q"]
        assert await found.add(3).mail_queues() == []


async def test_entering_again_is_harmless() -> None:
    async with fleet() as (_, (one, two)):
        run = make_run(1, 10)
        await one.enter("q", [span(run, 0, 4)], PLENTY)
        await two.lease("q", 2, 10**9, 30.0)
        entered = await one.enter("q", [some(run, 1, 3, 5, 6, 9), whole(make_run(2, 1))], PLENTY)
        assert (entered.rest, entered.fill.items) == ([], 8)
        assert (await one.enter("q", [whole(run)], Limits(9, 10**9))).rest[0].bits == 0b110000000
        again = await all_of(two)
        assert [each.slice.bits for each in again] == [0b1100, 0b10000, 0b1001100000, 1]


async def test_daemons_with_the_same_run_do_not_hide_each_others() -> None:
    async with fleet() as (_, (one, two)):
        await one.enter("q", [whole(make_run(1, 2))], PLENTY)
        entered = await two.enter("q", [whole(make_run(1, 2))], PLENTY)
        assert entered.fill.items == 4
        [mine] = await one.present("q")
        assert (mine.bits, mine.position, mine.token) == (0b11, 1, 1001)


async def test_present_tells_what_is_there_and_what_is_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner_side, "PRESENT_SLICES", 2)
    async with fleet() as (_, (one, two)):
        runs = [make_run(number, 9) for number in range(5)]
        for run in runs:
            await one.enter("q", [some(run, at, at + 3) for at in range(3)], PLENTY)
        await two.enter("q", [whole(make_run(7, 3))], PLENTY)
        [leased] = await two.lease("q", 2, 10**9, 30.0)
        await two.lease("q", 1, 10**9, 30.0)
        await two.end("q", [Ending(leased.token)])
        found = await one.present("q")
        assert [(each.position, each.token) for each in found] == [(n, n + 1000) for n in range(5)]
        assert [each.run_id for each in found] == [run.head.run_id for run in runs]
        assert (found[0].bits, found[0].leased_bits) == (0b110110, 0b000010)
        assert {(each.bits, each.leased_bits) for each in found[1:]} == {(0b111111, 0)}
        assert await one.present("other") == []


async def test_withdraw_leaves_what_is_another_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_side, "WITHDRAW_SLICES", 2)
    async with fleet() as (found, (one, two)):
        of_cold = make_run(5, 1, owner=InCold(b"r" * 16, b"l" * 16))
        await one.enter("q", [whole(make_run(n, 2)) for n in (4, 1, 3, 2)], PLENTY)
        await two.enter("q", [whole(make_run(9, 2)), whole(of_cold)], PLENTY)
        await two.lease("q", 2, 10**9, 30.0)
        assert places(await one.withdraw("q", positions=range(3, 10))) == [(3, 0, 2), (4, 0, 2)]
        assert places(await one.withdraw("q")) == [(2, 0, 2), (5, 0, 1)]
        assert (await one.fill("q")).items == 4
        assert await one.withdraw("q") == []
        assert places(await two.withdraw("q")) == [(9, 0, 2)]
        assert found.keys() == ["all", "leases", "runs", "slices"]


async def test_big_batches_enter_in_portions_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "ENTER_SLICES", 3)
    async with fleet(1) as (_, (one,)):
        slices = [whole(make_run(number, 2)) for number in range(10)]
        entered = await one.enter("q", slices, Limits(15, 10**9))
        assert places(entered.rest) == [(7, 1, 2), (8, 0, 2), (9, 0, 2)]
        assert entered.fill.items == 15
        entered = await one.enter("q", entered.rest, PLENTY)
        assert views(await all_of(one)) == views(
            [*slices[:7], part(slices[7].run, 0, 1), part(slices[7].run, 1, 2), *slices[8:]]
        )


async def test_run_that_is_taken_in_parts_comes_once() -> None:
    async with fleet(1) as (found, (one,)):
        run = make_run(1, 100, item_size=5000)
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
        await one.enter("q", [whole(make_run(n, 3)) for n in range(5)], PLENTY)
        await two.enter("q", [whole(make_run(9, 3), due_ms=soon_ms)], PLENTY)
        assert len(found.keys()) == 5
        await one.end("q", [Ending(each.token) for each in await all_of(two)])
        found.time_ms = soon_ms
        await two.end("q", [Ending(each.token) for each in await all_of(two)])
        assert found.keys() == []
        assert await one.fill("q") == Fill()


def _sent_bytes(found: Fleet) -> int:
    sent: int = found.server.command("INFO", "stats")["total_net_output_bytes"]
    return sent
