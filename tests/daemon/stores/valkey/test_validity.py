"""An owner that falls silent: its slices stay, nobody takes them, and they are there on return."""

import pytest
import trio

from actors.model.slices import InCold, LentRun
from actors.ports.tiers import Ending, Fill
from tests.conformance.warm_rig import PLENTY, make_run, places, whole
from tests.daemon.stores.valkey.fleet import LONG_S, VALID_S, all_of, fleet

VALID_MS = round(VALID_S * 1000)


def row(number: int, lock: bytes = b"l", items: int = 2) -> LentRun:
    return make_run(number, items, owner=InCold(bytes([number]) * 16, lock * 16))


async def test_what_was_never_said_to_be_valid_is_not_leased() -> None:
    async with fleet() as (found, (one, _)):
        third = found.add()
        await third.enter("q", [whole(make_run(1, 2))], PLENTY)
        assert await all_of(one) == await all_of(third) == []
        assert (await one.fill("q")).waiting == 2
        await third.keep_valid(["q"], VALID_S)
        assert places(await all_of(one)) == [(1, 0, 2)]


async def test_lapsed_owners_slices_are_passed_over_by_all() -> None:
    async with fleet() as (found, (one, two)):
        await one.keep_valid(["q"], VALID_S)
        await one.enter("q", [whole(make_run(n, 2)) for n in range(30)], PLENTY)
        await two.enter("q", [whole(make_run(90, 2))], PLENTY)
        found.time_ms += VALID_MS - 1
        [leased] = await one.lease("q", 2, 10**9, 30.0)
        found.time_ms += 1
        assert places(await all_of(two)) == [(90, 0, 2)]
        assert await all_of(one) == []
        assert (await two.fill("q")).waiting == 58
        # What was in hand stays there, and can be concluded.
        assert await one.extend("q", [leased.token], 30.0) == [True]
        assert await one.end("q", [Ending(leased.token)]) == [True]
        await one.keep_valid(["q"], VALID_S)
        assert places(await all_of(two)) == [(n, 0, 2) for n in range(1, 30)]


async def test_who_waits_is_woken_when_an_owner_is_back() -> None:
    async with fleet() as (found, (one, two)):
        await one.keep_valid(["q"], VALID_S)
        await one.enter("q", [whole(make_run(1, 2))], PLENTY)
        found.time_ms += VALID_MS
        assert await all_of(two) == []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.wait, "q")
                await one.keep_valid(["q"], VALID_S)
        assert places(await all_of(two)) == [(1, 0, 2)]


async def test_rows_are_valid_for_as_long_as_they_were_acquired_and_renewed_by_lock() -> None:
    async with fleet() as (found, (_, two)):
        third = found.add(rows_valid_s=VALID_S)
        await third.enter("q", [whole(row(1, b"a")), whole(row(2, b"b"))], PLENTY)
        found.time_ms += VALID_MS - 1
        await third.keep_rows_valid("q", [b"a" * 16], VALID_S)
        found.time_ms += 1
        assert places(await all_of(two)) == [(1, 0, 2)]
        assert (await two.fill("q")).cold_items == 4
        await third.keep_rows_valid("q", [], VALID_S)
        await third.keep_rows_valid("q", [b"b" * 16], VALID_S)
        assert places(await all_of(two)) == [(2, 0, 2)]


async def test_entering_the_rest_of_a_row_does_not_renew_it() -> None:
    async with fleet() as (found, (_, two)):
        third = found.add(rows_valid_s=VALID_S)
        await third.enter("q", [whole(row(1))], PLENTY)
        found.time_ms += VALID_MS
        await third.enter("q", [whole(row(2))], PLENTY)
        assert await all_of(two) == []


async def test_row_that_was_acquired_again_replaces_what_is_left_of_it() -> None:
    async with fleet() as (found, (one, two)):
        await one.enter("q", [whole(row(1, b"a", 4)), whole(row(2, b"a", 4))], PLENTY)
        [leased] = await one.lease("q", 1, 10**9, 30.0)
        # Its lease on the row ran out, and another daemon has it.
        entered = await two.enter("q", [whole(row(1, b"b", 4))], PLENTY)
        assert entered.fill.items == 1 + 4 + 4
        again = await all_of(two)
        assert places(again) == [(1, 0, 4), (2, 0, 4)]
        assert again[0].slice.run.owner == InCold(bytes([1]) * 16, b"b" * 16)
        assert await one.end("q", [Ending(leased.token)]) == [True]
        assert await two.end("q", [Ending(each.token) for each in again]) == [True, True]
        assert found.keys() == []
        assert await one.fill("q") == Fill()


async def test_rows_that_nobody_answers_for_are_let_go_after_a_while() -> None:
    async with fleet() as (found, (_, two)):
        third = found.add(rows_valid_s=VALID_S)
        await third.enter("q", [whole(row(1)), whole(make_run(2, 1))], PLENTY)
        found.time_ms += VALID_MS + 600_000
        assert await all_of(two) == []
        assert (await two.fill("q")).cold_items == 2
        found.time_ms += 1
        assert await all_of(two) == []
        # The journal's are its own to bring back.
        assert await two.fill("q") == Fill(1, make_run(2, 1).item_bytes)


async def test_generation_changes_when_the_server_has_forgotten_all() -> None:
    async with fleet() as (found, (one, two)):
        first = await one.generation()
        assert await two.generation() == await one.generation() == first
        await one.enter("q", [whole(make_run(1, 2))], PLENTY)
        [stale] = await all_of(two)
        await two.end("q", [Ending(stale.token, post=b"read and not removed")])
        assert await one.mail("q") == [b"read and not removed"]
        found.server.command("EVAL", _FLUSH, 0, f"{found.prefix}:*")

        assert await one.generation() != first
        assert await two.generation() == await one.generation()
        assert await one.present("q") == []
        await one.enter("q", [whole(make_run(1, 2))], PLENTY)
        assert await all_of(two) == []
        await one.keep_valid(["q"], LONG_S)
        [leased] = await all_of(two)
        # A token of the time before fits nothing, nor does a word about mail of then.
        assert await two.end("q", [Ending(stale.token)]) == [False]
        await two.end("q", [Ending(leased.token, post=b"new")])
        await one.mail_done("q", 1)
        assert await one.mail("q") == [b"new"]
        assert await one.mail_queues() == ["q"]


@pytest.mark.parametrize("row_id, lock", [(b"short", b"l" * 16), (b"r" * 16, b"")])
async def test_ids_of_another_length_are_refused(row_id: bytes, lock: bytes) -> None:
    async with fleet(1) as (_, (one,)):
        with pytest.raises(ValueError, match="16 bytes"):
            await one.enter("q", [whole(make_run(1, 2, owner=InCold(row_id, lock)))], PLENTY)


_FLUSH = """for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end"""
"""As FLUSHALL does, for one prefix of a server that others use as well."""
