"""Requests through a proxy, on real sockets; and what is said when the proxy is the problem."""

import shutil
from base64 import b64encode
from collections.abc import AsyncIterator

import pytest
import trio
from pydantic import ValidationError
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.config.http import HttpHandler
from actors.model.error_types import error_type
from actors.model.outcomes import Failure
from daemon.config.secrets import read_secrets
from daemon.errors import ConfigError
from daemon.handlers.http.handler import HttpDelivery
from daemon.handlers.http.proxy import Proxy
from daemon.handlers.http.request import target_of
from tests.daemon.handlers.http.batches import Sending, a_slice, sending
from tests.daemon.handlers.http.certificates import Certificates, make_certificates
from tests.daemon.handlers.http.faulty import FaultyServer, answer, faulty_server
from tests.daemon.handlers.http.proxy_server import ProxyServer, proxy_server
from tests.servers.ports import free_port

ITEM = a_slice(b"payload")
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl command"
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProxyServer]:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "request_method"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with proxy_server() as proxy:
        yield proxy


def blamed(failure: Failure) -> str:
    assert (failure.is_permanent, failure.blames_destination) == (False, True)
    return failure.text


class TestHttp:
    async def test_proxy_is_told_the_whole_address(
        self, server: FaultyServer, proxy: ProxyServer
    ) -> None:
        url = server.url(path="/hook?a=b")
        async with sending(url, proxy=proxy.url) as opened:
            for _ in range(3):
                await opened.delivers(ITEM)
            assert opened.handler.destination == f"http://127.0.0.1:{server.port}"
        assert proxy.asked == [("POST", url)] * 3
        assert proxy.connections == 1
        assert {request.path for request in server.requests} == {"/hook?a=b"}
        assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"

    async def test_user_is_for_the_proxy_alone(
        self, server: FaultyServer, proxy: ProxyServer
    ) -> None:
        url = proxy.url.replace("http://", "http://sp%40rk@")
        async with sending(server.url(), proxy=url) as opened:
            await opened.delivers(ITEM)
        said = f"Basic {b64encode(b'sp@rk:').decode()}"
        assert [headers["proxy-authorization"] for headers in proxy.headers] == [said]
        assert "proxy-authorization" not in server.requests[0].headers

    async def test_its_password_is_a_secret(
        self, server: FaultyServer, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PROXY_PASSWORD", "hush-4711")
        url = proxy.url.replace("http://", "http://spark@")
        given = {"url": server.url(), "proxy": url, "proxy_password": {"env": "PROXY_PASSWORD"}}
        settings = HttpHandler.model_validate({**given, "timeout": "1h"})
        read_secrets(settings)
        opened = Sending(HttpDelivery("crm", settings))
        await opened.delivers(ITEM)
        await opened.sender.aclose()
        said = f"Basic {b64encode(b'spark:hush-4711').decode()}"
        assert [headers["proxy-authorization"] for headers in proxy.headers] == [said]
        with pytest.raises(ValidationError, match="proxy_password needs a user in proxy"):
            HttpHandler.model_validate({**given, "proxy": proxy.url})

    async def test_templated_addresses_and_tokens_go_through_it(
        self, server: FaultyServer, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CRM_SECRET", "hush-4711")
        auth = {"type": "oauth2", "token_url": server.url(path="/token"), "client_id": "forebay"}
        settings = HttpHandler.model_validate(
            {
                "url": server.url(),
                "proxy": proxy.url,
                "request": {"url": "/c/{{ payload }}"},
                "auth": {**auth, "client_secret": {"env": "CRM_SECRET"}},
                "timeout": "1h",
            }
        )
        read_secrets(settings)
        server.will(answer("200 OK", b'{"access_token": "token-1"}'))
        opened = Sending(HttpDelivery("crm", settings))
        await opened.delivers(a_slice(b'"a b"'))
        await opened.sender.aclose()
        asked = [server.url(path="/token"), server.url(path="/c/a%20b")]
        assert proxy.asked == [("POST", url) for url in asked]

    async def test_proxy_that_wants_to_know_who_asks(
        self, server: FaultyServer, proxy: ProxyServer
    ) -> None:
        proxy.says = b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n"
        async with sending(server.url(), proxy=proxy.url) as opened:
            text = blamed(await opened.failure(ITEM))
        assert text == f"{proxy.name} refused the request: 407 Proxy Authentication Required"
        assert error_type(text) == "connection"

    async def test_answer_of_destination_or_proxy_names_both(
        self, server: FaultyServer, proxy: ProxyServer
    ) -> None:
        server.will(answer("502 Bad Gateway", b"down"))
        async with sending(server.url(), proxy=proxy.url) as opened:
            text = blamed(await opened.failure(ITEM))
        where = f"http://127.0.0.1:{server.port} through {proxy.name}"
        assert text == f"502 from {where}: down"

    async def test_proxy_that_closes(self, server: FaultyServer, proxy: ProxyServer) -> None:
        proxy.says = b""
        async with sending(server.url(), proxy=proxy.url) as opened:
            text = blamed(await opened.failure(ITEM))
        assert text == f"{proxy.name} closed the connection and gave no answer"


@needs_openssl
class TestHttps:
    @pytest.fixture
    async def secure(self, certificates: Certificates) -> AsyncIterator[FaultyServer]:
        async with faulty_server(certificates.server_context("local")) as server:
            yield server

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    async def test_requests_go_through_a_tunnel(
        self, secure: FaultyServer, proxy: ProxyServer, certificates: Certificates, host: str
    ) -> None:
        ca_file = certificates.authority
        async with sending(secure.url(host), proxy=proxy.url, ca_file=ca_file) as opened:
            for _ in range(3):
                await opened.delivers(ITEM)
            assert opened.handler.destination == f"https://{host}:{secure.port}"
        assert proxy.asked == [("CONNECT", f"{host}:{secure.port}")]
        assert proxy.headers == [{"host": f"{host}:{secure.port}"}]
        assert [request.path for request in secure.requests] == ["/hook"] * 3
        assert secure.connections == 1

    async def test_user_is_for_the_proxy_alone(
        self, secure: FaultyServer, proxy: ProxyServer, certificates: Certificates
    ) -> None:
        url = proxy.url.replace("http://", "http://spark@")
        async with sending(secure.url(), proxy=url, ca_file=certificates.authority) as opened:
            await opened.delivers(ITEM)
        said = f"Basic {b64encode(b'spark:').decode()}"
        assert [headers["proxy-authorization"] for headers in proxy.headers] == [said]
        assert "proxy-authorization" not in secure.requests[0].headers

    async def test_certificate_is_that_of_the_destination(
        self, proxy: ProxyServer, certificates: Certificates
    ) -> None:
        async with (
            faulty_server(certificates.server_context("other")) as server,
            sending(
                server.url("localhost"), proxy=proxy.url, ca_file=certificates.authority
            ) as opened,
        ):
            text = blamed(await opened.failure(ITEM))
            assert text.startswith(f"no TLS with localhost:{server.port}: ")
            assert "certificate is not valid for 'localhost'" in text
            assert server.requests == []

    @pytest.mark.parametrize(
        "said, problem",
        [
            (b"HTTP/1.1 407 Who are you\r\n\r\n", "does not connect to {}: 407 Who are you"),
            (b"HTTP/1.0 502\r\n\r\n", "does not connect to {}: 502"),
            (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "does not connect to {}: 302 Found"),
            (b"", "closed the connection"),
            (b"HTTP/1.1 200", "closed the connection"),
            (b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer in HTTP: "),
        ],
    )
    async def test_proxy_that_makes_no_tunnel_is_blamed(
        self, secure: FaultyServer, proxy: ProxyServer, said: bytes, problem: str
    ) -> None:
        proxy.says = said
        async with sending(secure.url(), proxy=proxy.url) as opened:
            text = blamed(await opened.failure(ITEM))
        assert text.startswith(f"{proxy.name} {problem}".format(f"127.0.0.1:{secure.port}"))
        assert secure.connections == 0
        if not problem.endswith("HTTP: "):
            assert error_type(text) == "connection"

    async def test_tunnel_takes_no_longer_than_the_timeout(
        self, proxy: ProxyServer, mock_clock: MockClock
    ) -> None:
        proxy.is_silent = True
        async with (
            sending("https://crm.example/", proxy=proxy.url, timeout="10s") as opened,
            trio.open_nursery() as nursery,
        ):

            async def fails() -> None:
                text = blamed(await opened.failure(ITEM))
                assert text == f"crm.example:443: waiting for {proxy.name} took longer than 10s"

            nursery.start_soon(fails)
            await proxy.asking.wait()
            await wait_all_tasks_blocked(0.02)
            mock_clock.jump(11)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_proxy_that_is_not_there(scheme: str) -> None:
    port = free_port()
    url = f"{scheme}://crm.example/"
    async with sending(url, proxy=f"http://127.0.0.1:{port}") as opened:
        text = blamed(await opened.failure(ITEM))
    assert text == f"the proxy cannot be reached: connection refused by 127.0.0.1:{port}"


async def test_proxy_whose_name_is_unknown() -> None:
    async with sending("https://crm.example/", proxy="http://proxy.invalid:3128") as opened:
        text = blamed(await opened.failure(ITEM))
    assert text.startswith(
        "the proxy cannot be reached: the name proxy.invalid cannot be resolved: "
    )


class TestEnvironment:
    async def test_is_not_used_unless_it_is_asked_for(
        self, server: FaultyServer, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
        assert proxy.asked == []
        async with sending(server.url(), proxy="env") as opened:
            await opened.delivers(ITEM)
        assert len(proxy.asked) == 1

    async def test_may_name_a_password(
        self, server: FaultyServer, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", f"spark:s%3Acret@127.0.0.1:{proxy.port}")
        async with sending(server.url(), proxy="env") as opened:
            await opened.delivers(ITEM)
        said = f"Basic {b64encode(b'spark:s:cret').decode()}"
        assert [headers["proxy-authorization"] for headers in proxy.headers] == [said]

    @pytest.mark.parametrize(
        "variables",
        [
            {},
            {"HTTPS_PROXY": "http://127.0.0.1:9"},
            {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"},
            {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"},
        ],
    )
    async def test_that_names_none_for_this_host(
        self,
        server: FaultyServer,
        proxy: ProxyServer,
        monkeypatch: pytest.MonkeyPatch,
        variables: dict[str, str],
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        async with sending(server.url(), proxy="env") as opened:
            await opened.delivers(ITEM)

    @pytest.mark.parametrize(
        "url, shown",
        [
            ("socks5://127.0.0.1:9", "socks5://127.0.0.1:9"),
            ("https://a:secret@127.0.0.1:9", "https://***@127.0.0.1:9"),
            ("http://127.0.0.1:x", "http://127.0.0.1:x"),
        ],
    )
    def test_that_cannot_be_used(
        self, monkeypatch: pytest.MonkeyPatch, url: str, shown: str
    ) -> None:
        monkeypatch.delenv("https_proxy", raising=False)
        monkeypatch.setenv("HTTPS_PROXY", url)
        with pytest.raises(ConfigError) as caught:
            HttpDelivery("crm", HttpHandler(url="https://crm.example/", proxy="env"))
        assert caught.value.problems == (
            f"queues.crm.handler.proxy: HTTPS_PROXY is '{shown}': only "
            "http://[USER[:PASSWORD]@]HOST[:PORT] can be used",
        )


@pytest.mark.parametrize(
    "proxy",
    [
        *(
            "",
            "proxy",
            "proxy:3128",
            "http://proxy",
            "http://proxy:0",
            "http://proxy:x",
            "http://:1",
        ),
        *("https://proxy:3128", "socks5://proxy:1080", "http://proxy:3128/path", "http://[:1"),
        *("http://proxy:3128?a", "http://proxy:3128#a"),
    ],
)
def test_what_is_no_proxy_is_refused(proxy: str) -> None:
    with pytest.raises(ValidationError, match=r"is not a proxy: write http://\[USER@\]HOST:PORT"):
        HttpHandler(url="https://crm.example/", proxy=proxy)


def test_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ValidationError) as refused:
        HttpHandler(url="https://crm.example/", proxy="http://spark:secret@proxy:3128")
    text = str(refused.value.errors(include_input=False)[0]["msg"])
    assert "'http://***@proxy:3128': leave out the password" in text
    assert "secret" not in text


def test_form_of_a_path() -> None:
    proxy = Proxy("proxy.example", 3128)
    assert target_of("http://crm.example/").form(b"/a?b") == b"/a?b"
    assert target_of("https://crm.example/", proxy).form(b"/a?b") == b"/a?b"
    assert target_of("http://crm.example/", proxy).form(b"/a?b") == b"http://crm.example/a?b"
    assert target_of("http://[::1]:81/", proxy).form(b"/") == b"http://[::1]:81/"
