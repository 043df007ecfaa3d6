"""Ways to a server: TLS, passwords, Sentinel; and URLs that lead nowhere."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import trio

from actors.ports.tiers import Ending, StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.server import ValkeySettings, connect
from daemon.stores.valkey.url import without_password
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import PLENTY, places, whole
from tests.daemon.handlers.http.certificates import Certificates, make_certificates
from tests.daemon.stores.valkey.fleet import row_in
from tests.daemon.stores.valkey.sentinels import until
from tests.servers.ports import free_port
from tests.servers.valkey import (
    ValkeyServer,
    binaries,
    new_prefix,
    shared_server,
    tls_front,
    valkey_server,
)

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl command"
)


async def serves(url: str, *, username: str = "", password: str = "", prefix: str = "") -> None:
    """All of a queue's life through this URL, with somebody who waits."""
    async with Bridge() as bridge:
        prefix = prefix or new_prefix()
        settings = ValkeySettings(url, username, password, timeout_s=60.0, prefix=prefix)
        warm = ValkeyWarm(settings, bridge)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(warm.run)
                await _life(warm)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await warm.close()


async def refused(url: str, problem: str) -> None:
    async with Bridge() as bridge:
        warm = ValkeyWarm(ValkeySettings(url, timeout_s=60.0), bridge)
        try:
            with pytest.raises(StoreUnavailable, match=problem):
                await warm.generation()
        finally:
            await warm.close()


async def _life(warm: ValkeyWarm) -> None:
    assert await warm.generation() == await warm.generation()
    run, other = [await row_in(warm, 1, 4, queue=queue) for queue in ("q", "other")]
    assert await warm.lease("q", 9, 10**9, 30.0) == []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(warm.wait, "q")
            await warm.enter("q", [whole(run)], PLENTY)
    await warm.enter("other", [whole(other)], PLENTY)
    [leased] = await warm.lease("q", 3, 10**9, 30.0)
    assert places([leased]) == [(1, 0, 3)]
    assert await warm.extend("q", [leased.token], 30.0) == [True]
    assert set(await warm.fills()) == {"q", "other"}
    assert await warm.end("q", [Ending(leased.token)]) == [True]
    assert places(await warm.withdraw("q")) == [(1, 3, 4)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@needs_openssl
async def test_tls_with_an_authority_that_is_trusted(certificates: Certificates) -> None:
    async with tls_front(shared_server().path, certificates.server_context("local")) as port:
        await serves(f"rediss://localhost:{port}?ssl_ca_certs={certificates.authority}")


@needs_openssl
@pytest.mark.parametrize("name, is_trusted", [("local", False), ("other", True)])
async def test_tls_that_cannot_be_verified_is_refused(
    certificates: Certificates, name: str, is_trusted: bool
) -> None:
    trusted = f"?ssl_ca_certs={certificates.authority}" if is_trusted else ""
    async with tls_front(shared_server().path, certificates.server_context(name)) as port:
        await refused(f"rediss://localhost:{port}{trusted}", "CERTIFICATE_VERIFY_FAILED")


async def test_passwords_and_users() -> None:
    with valkey_server(has_port=True) as server:
        server.command("ACL", "SETUSER", "fleet", "on", ">s3/cret", "~*", "+@all", "&*")
        server.command("ACL", "SETUSER", "mute", "on", ">m", "~*", "+@all", "resetchannels")
        server.command("ACL", "SETUSER", "default", "off")
        await serves(f"redis://fleet:s3%2Fcret@127.0.0.1:{server.port}/0")
        await serves(server.url, username="fleet", password="s3/cret")
        await refused(f"redis://fleet:wrong@127.0.0.1:{server.port}", "invalid username-password")
        await refused(server.url, "Authentication required")
        # One that may not publish only wakes others later.
        await serves(f"redis://mute:m@127.0.0.1:{server.port}")


async def test_another_database() -> None:
    server = shared_server()
    await serves(f"unix://{server.path}?db=3")


@contextmanager
def sentinel_of(server: ValkeyServer) -> Iterator[int]:
    """A Sentinel that watches one primary; its port."""
    port = free_port()
    directory = Path(tempfile.mkdtemp(prefix="fb-sentinel-"))
    (directory / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {server.port} 1\n"
    )
    process = subprocess.Popen(
        [binaries()["valkey"], "sentinel.conf", "--sentinel"],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: redis.Redis("127.0.0.1", port).ping())
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


async def test_sentinel_says_where_the_primary_is() -> None:
    with valkey_server(has_port=True) as server, sentinel_of(server) as port:
        await serves(f"sentinel://127.0.0.1:{free_port()},127.0.0.1:{port}/main")
        await refused(f"sentinel://127.0.0.1:{port}/another", "No master found for 'another'")


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_nobody_there(scheme: str) -> None:
    await refused(f"{scheme}://127.0.0.1:{free_port()}", "(?i)connect")


@pytest.mark.parametrize(
    "url, problem",
    [
        ("http://host", "http:// is not supported: use redis://"),
        (
            "redis-cluster://host",
            "^redis-cluster:// is not supported: use redis://, rediss://, unix:// or sentinel://$",
        ),
        ("redis://", "names no host"),
        ("redis://a,b", "takes one host"),
        ("unix://", "lacks the path"),
        ("sentinel://host:26379", "lacks the name of the service"),
        ("redis://host:port", "Port"),
    ],
)
def test_url_that_makes_no_sense(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ValkeySettings(url)


def test_prefix_that_would_break_the_hash_tags() -> None:
    for prefix in ("", "a{b"):
        with pytest.raises(ValueError, match="prefix"):
            ValkeySettings("redis://host", prefix=prefix)


def test_password_is_not_shown() -> None:
    url = "rediss://user:secret@host:6379/1?ssl_keyfile=x"
    assert without_password(url) == "rediss://host:6379/1"
    assert without_password("unix:///run/valkey.sock") == "unix:///run/valkey.sock"


def test_nothing_is_sent_twice() -> None:
    """A lost answer may have been a step that was taken."""
    client, _ = connect(ValkeySettings("redis://host"))
    assert client.connection_pool.connection_kwargs["retry"]._retries == 0
