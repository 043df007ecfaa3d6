"""The stores behind TLS, as a daemon opens them: trusted with a private authority, refused with one
line that says why, with certificates of clients, and with a user who may do what is needed only."""

import re
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.config.settings import Settings
from actors.ports.tiers import StoreUnavailable
from daemon.errors import CannotStart
from daemon.stores.open import open_stores
from tests.daemon.handlers.http.certificates import Certificates, make_certificates
from tests.fleet.tls_fronts import has_tls, postgres_front, postgres_with_tls
from tests.servers import postgres, valkey
from tests.servers.ports import free_port
from tests.servers.postgres import USER
from tests.servers.valkey import new_prefix, tls_front

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl command"
)
UNTRUSTED = [
    ("local", "localhost", False, "unable to get local issuer certificate"),
    ("other", "localhost", True, "Hostname mismatch, certificate is not valid for 'localhost'"),
    ("expired", "127.0.0.1", True, "certificate has expired"),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Migrated by whoever comes first."""
    server = postgres.shared_server()
    name = server.create_database()
    yield name
    server.drop_database(name)


@pytest.fixture
def cold_url(database: str) -> str:
    """Past all fronts."""
    return postgres.shared_server().url(database)


async def opens(directory: Path, cold: str, warm: str | None = None, *, wait: bool = False) -> None:
    """Both stores, and something is done with each."""
    made: dict[str, object] = {
        "state_dir": directory,
        "cold": {"type": "postgres", "url": cold, "timeout": "60s"},
    }
    if warm is not None:
        made["warm"] = {"type": "valkey", "url": warm, "timeout": "60s", "prefix": new_prefix()}
    async with open_stores(Settings.model_validate(made), wait=wait) as stores:
        await stores.cold.outlook("q")
        if warm is not None:
            assert stores.remote is not None
            await stores.remote.generation()


async def refuses(why: str, directory: Path, cold: str, warm: str | None = None) -> None:
    """At once, whoever waits; in one line, without a password."""
    for wait in (False, True):
        with pytest.raises(CannotStart, match=re.escape(why)) as refused:
            await opens(directory, cold, warm, wait=wait)
        assert "\n" not in str(refused.value)
        assert "secret" not in str(refused.value)


def trusting(certificates: Certificates, *, is_trusted: bool = True, client: str = "") -> str:
    """The end of a URL of Valkey's."""
    options = [f"ssl_ca_certs={certificates.authority}"] if is_trusted else []
    if client:
        options += [f"ssl_certfile={certificates.file(client)}"]
        options += [f"ssl_keyfile={certificates.file(client)}"]
    return f"?{'&'.join(options)}" if options else ""


def asking_for_certificates(certificates: Certificates) -> ssl.SSLContext:
    context = certificates.server_context("local")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority)
    return context


@pytest.mark.parametrize("name, host, is_trusted, why", UNTRUSTED)
async def test_valkey_that_is_not_trusted_is_refused(
    certificates: Certificates,
    cold_url: str,
    tmp_path: Path,
    name: str,
    host: str,
    is_trusted: bool,
    why: str,
) -> None:
    context = certificates.server_context(name)
    async with tls_front(valkey.shared_server().path, context) as port:
        end = trusting(certificates, is_trusted=is_trusted)
        await refuses(why, tmp_path, cold_url, f"rediss://u:secret@{host}:{port}{end}")


async def test_valkey_that_asks_for_a_certificate(
    certificates: Certificates, cold_url: str, tmp_path: Path
) -> None:
    context = asking_for_certificates(certificates)
    async with tls_front(valkey.shared_server().path, context) as port:
        url = f"rediss://localhost:{port}"
        await opens(tmp_path, cold_url, url + trusting(certificates, client="client"))
        with capture_logs() as logs, pytest.raises((StoreUnavailable, CannotStart)) as refused:
            await opens(tmp_path, cold_url, url + trusting(certificates))
        # What the server says of it may be lost with the connection.
        said = [str(refused.value), *(str(entry.get("error")) for entry in logs)]
        assert any("CERTIFICATE_REQUIRED" in one or "ssl_certfile" in one for one in said)


async def test_tls_with_files_that_are_not_there_or_without_tls(
    cold_url: str, tmp_path: Path
) -> None:
    nowhere = f"rediss://localhost:{free_port()}?ssl_ca_certs={tmp_path}/none.pem"
    await refuses(f"warm.url: [Errno 2] No such file or directory: '{tmp_path}/none.pem'",
                  tmp_path, cold_url, nowhere)  # fmt: skip
    await refuses("warm.url: ssl_ca_certs is of no use without TLS (rediss)",
                  tmp_path, cold_url, "redis://localhost?ssl_ca_certs=x")  # fmt: skip


@pytest.mark.parametrize("name, host, is_trusted, why", UNTRUSTED)
async def test_postgres_is_verified_in_full(
    certificates: Certificates,
    database: str,
    tmp_path: Path,
    name: str,
    host: str,
    is_trusted: bool,
    why: str,
) -> None:
    authority = certificates.authority if is_trusted else certificates.file("other")
    context = certificates.server_context(name)
    async with postgres_front(postgres.shared_server(), context) as port:
        where = f"{USER}:secret@{host}:{port}/{database}"
        url = f"postgresql://{where}?sslmode=verify-full&sslrootcert={authority}"
        await refuses(why, tmp_path, url)


async def test_postgres_that_is_trusted(
    certificates: Certificates, database: str, tmp_path: Path
) -> None:
    context = asking_for_certificates(certificates)
    async with postgres_front(postgres.shared_server(), context) as port:
        url = (
            f"postgresql://{USER}@localhost:{port}/{database}?sslmode=verify-full"
            f"&sslrootcert={certificates.authority}"
            f"&sslcert={certificates.file('client')}&sslkey={certificates.file('client')}"
        )
        await opens(tmp_path, url)


@pytest.mark.skipif(not has_tls(), reason="this build of PostgreSQL has no TLS of its own")
async def test_postgres_with_tls_of_its_own(certificates: Certificates, tmp_path: Path) -> None:
    with postgres_with_tls(certificates) as address:
        where = f"postgresql://{USER}@{address}/postgres?sslmode=verify-full"
        client = certificates.file("client")
        trusts = f"&sslrootcert={certificates.authority}"
        await opens(tmp_path, f"{where}{trusts}&sslcert={client}&sslkey={client}")
        await refuses("self-signed certificate", tmp_path, f"{where}&sslrootcert={client}")
