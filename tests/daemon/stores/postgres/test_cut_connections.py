"""A step whose connection is cut."""

import pytest

from actors.ports.tiers import StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.connection import Connection, Database
from tests.servers.postgres import fresh_database

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
