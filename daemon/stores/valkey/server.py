"""The connection to Valkey or Redis: how long it may take, and what its errors mean.

This is the store's edge: whatever the driver raises, a refused connection, READONLY after a
failover, OOM, LOADING, is `StoreUnavailable` here, once. Nothing is sent twice: a command whose
answer is lost may have been carried out, and only the caller knows whether it may be repeated. So
the driver's own retries are off. A step that is cancelled or late loses its connection with it.

After a failover the primary is another one. Sentinels are asked again with every new connection
(daemon/stores/valkey/sentinels.py). In a cluster the next step asks where everything is
(daemon/stores/valkey/cluster.py), also if the last one had no answer: a node that hangs says
nothing of the one that stands in for it.

Needs Redis 6.2 or Valkey 7.2: no command or option is younger.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import redis.asyncio as driver
import structlog
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)

from actors.ports.tiers import StoreUnavailable
from daemon.stores.bridge import Bridge, LoopSemaphore, TooSlow
from daemon.stores.valkey.cluster import PatientCluster
from daemon.stores.valkey.sentinels import Sentinels
from daemon.stores.valkey.url import ValkeyUrl, read_url

log = structlog.get_logger()

T = TypeVar("T")
Client = driver.Redis | RedisCluster
Argument = bytes | str | int | float

DRIVER_ERRORS: Final = (RedisError, RedisClusterException, OSError, TimeoutError)
ENDS: Final = ("closed by server", "reset by peer")


@dataclass(frozen=True, slots=True)
class ValkeySettings:
    """Where it is. ValueError if the URL makes no sense."""

    url: str
    username: str = ""
    password: str = ""
    """These count where the URL says nothing of them."""
    timeout_s: float = 2.0
    """For one step, connecting included."""
    connections_max: int = 16
    prefix: str = "forebay"
    """What all keys begin with."""

    def __post_init__(self) -> None:
        if "{" in self.prefix or not self.prefix:
            raise ValueError("a prefix of keys is not empty, and has no braces")
        read_url(self.url)


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    text: str
    digest: str


def script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Server:
    def __init__(self, settings: ValkeySettings, bridge: Bridge) -> None:
        self.settings = settings
        self.bridge = bridge
        self._client: Client | None = None
        self._sentinels: Sentinels | None = None
        self._url = read_url(settings.url)
        self._room = LoopSemaphore(settings.connections_max)
        self._is_lost = False
        """A step had no answer: in a cluster, another node may have the slot by now."""
        self._look = 0
        """How often it was asked where everything is."""

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        shield: bool = False,
    ) -> Any:
        """One script, one step."""
        return await self.step(lambda client: self.eval(client, script, keys, args), shield=shield)

    async def run_each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Any]:
        """The same script many times, in one hop and, without a cluster, one round trip. Each of
        them is a step of its own."""

        async def work(client: Client) -> list[Any]:
            if isinstance(client, RedisCluster):
                return [await self.eval(client, script, keys, args) for keys, args in calls]
            async with client.pipeline(transaction=False) as pipeline:
                for keys, args in calls:
                    pipeline.evalsha(script.digest, len(keys), *keys, *args)
                found: list[Any] = await pipeline.execute(raise_on_error=False)
            for at, (keys, args) in enumerate(calls):
                if isinstance(found[at], NoScriptError):
                    found[at] = await self.eval(client, script, keys, args)
                elif isinstance(found[at], Exception):
                    raise found[at]
            return found

        return await self.step(work) if calls else []

    async def eval(
        self, client: Client, script: Script, keys: Sequence[str], args: Sequence[Argument]
    ) -> Any:
        """In the loop's thread, as a part of a step."""
        try:
            return await client.evalsha(script.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await client.eval(script.text, len(keys), *keys, *args)

    async def command(self, *args: Argument) -> Any:
        return await self.step(lambda client: client.execute_command(*args))

    async def step(self, work: Callable[[Client], Awaitable[T]], *, shield: bool = False) -> T:
        """Anything else that is to happen within one deadline."""

        look = self._look

        async def attempt() -> T:
            nonlocal look
            async with self._room:
                is_lost, self._is_lost = self._is_lost, False
                self._look += is_lost
                look = self._look
                return await self._attempt(work, is_lost=is_lost)

        try:
            return await self.bridge.run(attempt, self.settings.timeout_s, shield=shield)
        except TooSlow:
            # One that was under way when it was asked last knows nothing new.
            self._is_lost |= look == self._look
            raise

    async def _attempt(self, work: Callable[[Client], Awaitable[T]], *, is_lost: bool) -> T:
        """In the loop's thread."""
        client = self.client()
        try:
            if is_lost and isinstance(client, RedisCluster):
                await client.aclose()
            return await work(client)
        except ReadOnlyError as error:
            # This server is no longer the primary: the name may point to another host already.
            if isinstance(client, driver.Redis):
                with suppress(*DRIVER_ERRORS):
                    await client.connection_pool.disconnect(inuse_connections=False)
            raise _translated(error, self._url) from error
        except DRIVER_ERRORS as error:
            raise _translated(error, self._url) from error

    async def check_policy(self) -> None:
        """A server that evicts keys forgets work that owners believe to be there."""

        async def policy(client: Client) -> str:
            found = await client.info("memory")
            return str(found.get("maxmemory_policy", ""))

        # Some services do not say; then nothing is known.
        with suppress(StoreUnavailable):
            found = await self.step(policy)
            if found not in ("", "noeviction"):
                log.warning("warm.valkey_evicts", maxmemory_policy=found)

    async def close(self) -> None:
        client, self._client = self._client, None
        sentinels, self._sentinels = self._sentinels, None
        for each in (client, sentinels):
            if each is not None:
                with suppress(StoreUnavailable, *DRIVER_ERRORS):
                    await self.bridge.run(each.aclose, self.settings.timeout_s, shield=True)

    def client(self) -> Client:
        """In the loop's thread."""
        if self._client is None:
            self._client, self._sentinels = connect(self.settings)
        return self._client


def connect(settings: ValkeySettings) -> tuple[Client, Sentinels | None]:
    """Nothing is sent yet. In the loop's thread."""
    options: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": settings.timeout_s,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        # The older protocol: nothing that is used here needs the newer one.
        "protocol": 2,
        # Steps wait for each other (`Server.step`), beside the one that listens; those that are
        # being closed count as well.
        "max_connections": 2 * settings.connections_max,
    }
    if settings.username:
        options["username"] = settings.username
    if settings.password:
        options["password"] = settings.password
    url = read_url(settings.url)
    if url.scheme.endswith("-cluster"):
        return PatientCluster(url, options, settings.timeout_s / 2), None
    if url.scheme == "sentinel":
        sentinels = Sentinels(url, options, settings.timeout_s)
        return sentinels.primary, sentinels
    if url.scheme == "unix":
        del options["socket_keepalive"]
    pool = driver.BlockingConnectionPool.from_url(
        settings.url, timeout=settings.timeout_s, **options
    )
    return driver.Redis.from_pool(pool), None


def _translated(error: Exception, url: ValkeyUrl) -> StoreUnavailable:
    text = str(error) or type(error).__name__
    if url.has_tls and "ssl_certfile" not in url.options and any(end in text for end in ENDS):
        # What a server says to one without a certificate is often lost with the connection.
        text += " (it may ask for a certificate: ssl_certfile)"
    return StoreUnavailable(f"Valkey: {text}")
