"""The passwords of both stores come from references, and a wrong one is said at once."""

from pathlib import Path
from typing import Any

import pytest

from actors.config.settings import Settings
from daemon.errors import CannotStart
from daemon.stores.open import open_stores
from tests.servers.postgres import PORT, USER, PostgresServer, postgres_server
from tests.servers.valkey import new_prefix, valkey_server

PASSWORD = "s3/cret @ home"


def settings(directory: Path, cold: dict[str, Any], warm: dict[str, Any] | None = None) -> Settings:
    made = {"state_dir": directory, "cold": {"type": "postgres", "timeout": "60s", **cold}}
    if warm is not None:
        made["warm"] = {"type": "valkey", "timeout": "60s", "prefix": new_prefix(), **warm}
    return Settings.model_validate(made)


def ask_for_a_password(server: PostgresServer) -> str:
    """The URL of a user who needs one."""
    server.sql(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    lines = f"local all {USER} trust\nlocal all all scram-sha-256\n"
    (server.directory / "data" / "pg_hba.conf").write_text(lines)
    server.sql("SELECT pg_reload_conf()")
    return f"postgresql://app@/postgres?host={server.directory}&port={PORT}"


async def test_stores_are_opened_with_the_passwords_of_their_references(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file, text in ((right, f"{PASSWORD}\n"), (wrong, "an old one")):
        file.write_text(text)
        file.chmod(0o600)
    with postgres_server() as database, valkey_server(has_port=True) as server:
        url = ask_for_a_password(database)
        server.command("ACL", "SETUSER", "fleet", "on", f">{PASSWORD}", "~*", "+@all", "&*")
        server.command("ACL", "SETUSER", "default", "off")
        cold = {"url": url, "password": {"file": str(right)}}
        warm = {
            "url": f"redis://fleet@127.0.0.1:{server.port}",
            "password": {"file": str(right)},
        }
        async with open_stores(settings(tmp_path, cold, warm)) as stores:
            await stores.cold.outlook("q")
            assert stores.remote is not None
            await stores.remote.generation()
        for cold_file, warm_file in ((wrong, right), (right, wrong)):
            cold["password"] = {"file": str(cold_file)}
            warm["password"] = {"file": str(warm_file)}
            with pytest.raises(CannotStart) as refused:
                async with open_stores(settings(tmp_path, cold, warm)):
                    pass
            assert "an old one" not in str(refused.value)
        missing = {"url": url, "password": {"file": str(tmp_path / "missing")}}
        with pytest.raises(CannotStart, match=r"cold\.password: .*missing cannot be read"):
            async with open_stores(settings(tmp_path, missing)):
                pass
