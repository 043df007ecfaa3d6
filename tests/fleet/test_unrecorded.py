"""Outcomes that the cold store was not told yet: nobody lends those rows anew before it knows."""

from pathlib import Path

import pytest

from actors.ports.tiers import StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.connection import Connection, Database
from tests.conformance.cold_stores import PLENTY
from tests.fleet.sides import two_sides
from tests.servers.postgres import fresh_database


@pytest.mark.parametrize("is_ours", [True, False], ids=["here", "on another host"])
async def test_a_row_whose_outcome_waits_to_be_told_is_not_lent_again(
    tmp_path: Path, is_ours: bool
) -> None:
    """Who lent it looks for it in vain, twice, while the outcome is in memory here, or while
    another host could not tell."""
    async with two_sides(tmp_path) as (lender, other, cold):
        await lender.lend()
        taker = lender if is_ours else other
        cold.break_down()
        await taker.deliver_all()
        if is_ours:
            cold.mend()
        await lender.owner.look("q")
        cold.mend()
        await lender.owner.look("q")
        await taker.failover.try_again()
        assert (await lender.cold.totals())["q"].delivered == 3
        assert not taker.settlement.stale_total
        assert not taker.settlement.unrecorded_rows


async def test_a_row_that_valkey_has_lost_is_given_back(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (lender, _, _):
        await lender.lend()
        await lender.shared.remote.withdraw("q")
        for _ in range(2):
            assert not await lender.cold.acquire("q", b"l" * 16, PLENTY, PLENTY, 60)
            await lender.owner.look("q")
        assert await lender.cold.acquire("q", b"l" * 16, PLENTY, PLENTY, 60)


CUT_AT_COMMIT = """
CREATE SCHEMA cut; SET LOCAL search_path = cut;
CREATE TABLE told (n integer);
CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON told DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION cut()"""


async def test_a_step_that_must_not_be_repeated_does_not_make_others_give_up() -> None:
    """Its connection was cut while it was committed. The next one's is cut too, and it is taken
    again on another: a server that cuts connections is not away."""
    tries = 0

    async def cut_once(con: Connection) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            await con.execute("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")
        return "done"

    async def install(con: Connection) -> None:
        await con.execute(CUT_AT_COMMIT)

    with fresh_database() as url:
        async with Bridge() as bridge:
            database = Database(url, 20, bridge, "cut", connections_max=2, is_pooled=False)
            await database.open(install)
            with pytest.raises(StoreUnavailable, match="terminating"):
                await database.write(
                    lambda con: con.execute("INSERT INTO told VALUES (1)"), is_repeatable=False
                )
            assert await database.write(cut_once) == "done"
            assert tries == 2
            await database.close()
