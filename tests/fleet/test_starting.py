"""What a daemon refuses at its start, so that it harms no other's rows."""

from pathlib import Path
from typing import Any

import pytest

from actors.config.settings import Settings
from actors.ports.fleet import MemberNote, MemberReport
from daemon.errors import CannotStart, ConfigError
from daemon.stores.open import open_stores
from tests.servers.postgres import fresh_database
from tests.servers.valkey import new_prefix, shared_server


def settings(directory: Path, url: str, **more: Any) -> Settings:
    directory.mkdir(exist_ok=True)
    cold = {"type": "postgres", "url": url, "timeout": "60s"}
    return Settings.model_validate({"state_dir": directory, "cold": cold, **more})


async def test_two_daemons_on_one_schema_must_be_a_fleet(tmp_path: Path) -> None:
    with fresh_database() as url:
        async with open_stores(settings(tmp_path / "a", url)) as first:
            assert first.fleet.members is not None
            await first.fleet.members.note(MemberNote(MemberReport(), 0))
            with pytest.raises(ConfigError, match="set `fleet: true` on both hosts"):
                async with open_stores(settings(tmp_path / "b", url)):
                    pass
            # A daemon of the fleet may, and so may one that finds that the other has stopped.
            async with open_stores(settings(tmp_path / "b", url, fleet=True)) as second:
                assert second.is_shared
            await first.fleet.members.note(MemberNote(MemberReport("stopped"), 0))
            async with open_stores(settings(tmp_path / "b", url)) as alone:
                assert not alone.is_shared


@pytest.mark.parametrize("key", ["all", "mail:00"])
async def test_items_of_an_older_forebay_in_valkey_are_not_passed_over(
    key: str, tmp_path: Path
) -> None:
    server, prefix = shared_server(), new_prefix()
    warm = {"type": "valkey", "url": server.url, "prefix": prefix, "timeout": "60s"}
    server.command("SADD", f"{prefix}:queues", "crm")
    with fresh_database() as url:
        made = settings(tmp_path, url, fleet=True, warm=warm)
        async with open_stores(made):
            # Its queue is known, and empty.
            pass
        name = f"{prefix}:{{crm}}:{key}"
        server.command(*(("ZADD", name, 0, "x") if key == "all" else ("RPUSH", name, "x")))
        with pytest.raises(CannotStart, match="holds items of an older forebay in crm: run that"):
            async with open_stores(made):
                pass


async def test_a_daemon_alone_has_keys_of_its_own_in_valkey(tmp_path: Path) -> None:
    server, prefix = shared_server(), new_prefix()
    warm = {"type": "valkey", "url": server.url, "prefix": prefix, "timeout": "60s"}
    with fresh_database() as url:
        async with open_stores(settings(tmp_path, url, warm=warm)) as stores:
            assert stores.remote is not None
            await stores.remote.epoch("crm")
            daemon = stores.fleet.daemon.hex()
            assert server.command("EXISTS", f"{prefix}:{daemon}:rows:{{crm}}:state") == 1
            assert not stores.is_shared
