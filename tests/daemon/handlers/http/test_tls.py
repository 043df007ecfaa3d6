"""TLS: who is believed, and what is said about who is not."""

import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.config.http import HttpHandler
from daemon.errors import ConfigError
from daemon.handlers.http.handler import HttpDelivery
from tests.daemon.handlers.http.batches import a_slice, sending
from tests.daemon.handlers.http.certificates import Certificates, make_certificates
from tests.daemon.handlers.http.faulty import OK, FaultyServer, faulty_server, says, says_and_closes

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl command"
)

ITEM = a_slice(b"payload")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def secure(certificates: Certificates) -> AsyncIterator[FaultyServer]:
    async with faulty_server(certificates.server_context("local")) as server:
        yield server


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_authority_from_a_file_is_believed(
    secure: FaultyServer, certificates: Certificates, host: str
) -> None:
    async with sending(secure.url(host), ca_file=certificates.authority) as opened:
        for _ in range(3):
            await opened.delivers(ITEM)
    assert len(secure.requests) == 3
    assert secure.connections == 1


async def test_a_certificate_of_an_unknown_authority_is_refused(secure: FaultyServer) -> None:
    async with sending(secure.url()) as opened:
        failure = await opened.failure(ITEM)
    assert failure.text.startswith(
        f"no TLS with 127.0.0.1:{secure.port}: the certificate is not accepted: "
    )
    assert (failure.is_permanent, failure.blames_destination) == (False, True)
    assert secure.requests == []


async def test_a_certificate_for_another_name_is_refused(certificates: Certificates) -> None:
    async with (
        faulty_server(certificates.server_context("other")) as server,
        sending(server.url("localhost"), ca_file=certificates.authority) as opened,
    ):
        failure = await opened.failure(ITEM)
        assert "certificate is not valid for 'localhost'" in failure.text
        assert server.requests == []


async def test_nothing_is_verified_where_that_is_wanted(certificates: Certificates) -> None:
    async with (
        faulty_server(certificates.server_context("other")) as server,
        sending(server.url(), verify_tls=False) as opened,
    ):
        await opened.delivers(ITEM)


class TestClientCertificates:
    @pytest.fixture
    async def strict(self, certificates: Certificates) -> AsyncIterator[FaultyServer]:
        context = certificates.server_context("local")
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        async with faulty_server(context) as server:
            yield server

    async def test_are_shown(self, strict: FaultyServer, certificates: Certificates) -> None:
        files = {"ca_file": certificates.authority, "cert_file": certificates.file("client")}
        async with sending(strict.url(), **files) as opened:
            await opened.delivers(ITEM)

    async def test_are_missed_by_a_server_that_wants_one(
        self, strict: FaultyServer, certificates: Certificates
    ) -> None:
        async with sending(strict.url(), ca_file=certificates.authority) as opened:
            failure = await opened.failure(ITEM)
        # In TLS 1.3 a client is refused after it was welcomed; trio's server does not say why.
        assert "gave no answer" in failure.text
        assert failure.blames_destination
        assert strict.requests == []


async def test_a_server_that_speaks_no_tls(server: FaultyServer) -> None:
    server.resets_new_connections = True
    async with sending(server.url().replace("http:", "https:")) as opened:
        failure = await opened.failure(ITEM)
    assert failure.text.startswith(f"no TLS with 127.0.0.1:{server.port}: ")


async def test_a_server_that_says_nothing(server: FaultyServer, mock_clock: MockClock) -> None:
    server.is_silent = True
    url = server.url().replace("http:", "https:")
    async with sending(url, timeout="10s") as opened, trio.open_nursery() as nursery:

        async def fails() -> None:
            text = (await opened.failure(ITEM)).text
            assert text == f"127.0.0.1:{server.port}: agreeing on TLS took longer than 10s"

        nursery.start_soon(fails)
        await server.accepted.wait()
        await wait_all_tasks_blocked(0.02)
        mock_clock.jump(11)


async def test_an_idle_connection_that_was_closed_is_replaced(
    secure: FaultyServer, certificates: Certificates
) -> None:
    secure.will(says_and_closes(OK), says(OK), says_and_closes())
    async with sending(secure.url(), ca_file=certificates.authority) as opened:
        for _ in range(3):
            await opened.delivers(ITEM)
    assert secure.connections == 3


class TestFiles:
    """What is wrong with them is said before anything starts."""

    @pytest.mark.parametrize("key", ["ca_file", "cert_file", "key_file"])
    def test_that_are_missing(self, key: str, certificates: Certificates) -> None:
        files = {"cert_file": certificates.file("client"), key: Path("/no/such/file.pem")}
        with pytest.raises(ConfigError) as caught:
            HttpDelivery("crm", HttpHandler(url="https://x/", **files))
        assert caught.value.problems == (
            f"queues.crm.handler.{key}: /no/such/file.pem: No such file or directory",
        )

    @pytest.mark.parametrize("key", ["ca_file", "cert_file"])
    def test_that_hold_something_else(self, key: str, tmp_path: Path) -> None:
        (tmp_path / "x.pem").write_text("not a certificate")
        with pytest.raises(ConfigError, match=rf"^queues\.crm\.handler\.{key}: .*cannot be used: "):
            HttpDelivery("crm", HttpHandler(url="https://x/", **{key: tmp_path / "x.pem"}))

    def test_with_a_password_are_refused_and_nobody_is_asked(
        self, certificates: Certificates
    ) -> None:
        locked = certificates.directory / "locked.key"
        files = {"cert_file": certificates.directory / "client.crt", "key_file": locked}
        with pytest.raises(ConfigError, match=r"cert_file: .*cannot be used: "):
            HttpDelivery("crm", HttpHandler(url="https://x/", **files))
