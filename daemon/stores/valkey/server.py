"""The connection to Valkey or Redis: how long it may take, and what its errors mean.

Every error of the driver (a refused connection, READONLY after a failover, OOM, LOADING) becomes
`StoreUnavailable` here. Nothing is sent twice: a command whose answer is lost may have been carried
out, and only the caller knows whether it may be repeated. So the driver's own retries are off. A
step that is cancelled or late closes its connection.

After a failover another server is the primary. Every new connection asks the Sentinels again
(`Sentinels`). In a cluster (`PatientCluster`) the next step asks where everything is, also if the
last one had no answer: a node that hangs does not name its replica.

Needs Redis 6.2 or Valkey 7.2: no command or option is younger.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import redis.asyncio as driver
import structlog
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import TimeoutError as TooLate

from actors.ports.tiers import StoreRefused, StoreUnavailable
from daemon.stores.bridge import Bridge, LoopSemaphore, TooSlow, loop_sleep
from daemon.stores.valkey.url import ValkeyUrl, read_url

log = structlog.get_logger()

T = TypeVar("T")
Client = driver.Redis | RedisCluster
Argument = bytes | str | int | float

DRIVER_ERRORS: Final = (RedisError, RedisClusterException, OSError, TimeoutError)
ENDS: Final = ("closed by server", "reset by peer")
PAUSE_S: Final = 0.02
NOT_HERE: Final = "access a non local key"


@dataclass(frozen=True, slots=True)
class ValkeySettings:
    """How to reach the server. Raises ValueError if the URL is not valid."""

    url: str
    username: str = ""
    password: str = ""
    """Used if the URL has no user name or password."""
    timeout_s: float = 2.0
    """For one step, including the time to connect."""
    connections_max: int = 16
    prefix: str = "forebay"
    """All keys begin with it."""

    def __post_init__(self) -> None:
        if "{" in self.prefix or not self.prefix:
            raise ValueError("the prefix of keys must not be empty or contain braces")
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
        """How many times the map of the cluster was fetched."""

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
        """Runs a script many times in one step; without a cluster, in one round trip. Each run is
        atomic by itself."""

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
        """Does `work` within one deadline."""
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
            # A step that began before the map was fetched says nothing about the new map.
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
        """Warns if the server evicts keys: it would forget slices that owners believe it has."""

        async def policy(client: Client) -> str:
            found = await client.info("memory")
            return str(found.get("maxmemory_policy", ""))

        # Some services do not tell their policy.
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


class PatientCluster(RedisCluster):
    """A client of a cluster that waits for slots that move between nodes.

    The driver follows MOVED and ASK. While a slot moves, a script with keys on both nodes is
    refused by both (TRYAGAIN), and the driver gives up after 0.4 s. This client retries until half
    of the step's time is over. A refused script has done nothing, so nothing is done twice: a
    script that finds out while it runs says so before it changes anything
    (daemon/stores/valkey/lua_state.py).

    A slot that takes longer to move makes the queue unavailable, like any other outage. A primary
    that does not answer makes all queues unavailable until its replica takes over, because a daemon
    handles them in one step.

    After every fifth MOVED the driver would fetch the whole map, and first close all connections
    while other steps use them. It is configured to follow each MOVED instead.
    """

    def __init__(self, url: ValkeyUrl, options: dict[str, Any], patience_s: float) -> None:
        self._patience_s = patience_s
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in url.addresses],
            ssl=url.has_tls,
            reinitialize_steps=0,
            **options | url.options,
        )

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return await super().execute_command(*args, **kwargs)
            except (ClusterError, ResponseError) as error:
                if not is_on_its_way(error):
                    raise
                if time.monotonic() >= until:
                    raise ClusterError(f"a slot is on its way to another node ({error})") from error
            await loop_sleep(PAUSE_S)


def is_on_its_way(error: Exception) -> bool:
    """Whether the slot is between two nodes. Nothing was done then."""
    # The driver raises a plain ClusterError when it was redirected too often.
    return type(error) is ClusterError or NOT_HERE in str(error)


class Sentinels(Sentinel):
    """The Sentinels, which know the primary; every new connection asks them for it.

    They are asked one after the other; the one that knew the primary is asked first the next time.
    Each has a share of the step's time, so that one that does not answer leaves time for the next.
    The error has the answer of each Sentinel; the driver's own error prints its clients instead.
    """

    def __init__(self, url: ValkeyUrl, options: dict[str, Any], timeout_s: float) -> None:
        """`options` are the driver's options for the servers; those for Sentinels are in the
        URL."""
        each_s = timeout_s / (len(url.addresses) + 1)
        super().__init__(  # type: ignore[no-untyped-call]
            url.addresses,
            sentinel_kwargs={
                "socket_timeout": each_s,
                "socket_connect_timeout": each_s,
                "retry": options["retry"],
                "protocol": options["protocol"],
                **url.of_sentinels,
            },
        )
        self._primary: driver.Redis = self.master_for(url.service, **options | url.options)

    @property
    def primary(self) -> driver.Redis:
        return self._primary

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        said: list[str] = []
        for sentinel in list(self.sentinels):
            kept = sentinel.connection_pool.connection_kwargs
            where = f"{kept['host']}:{kept['port']}"
            try:
                known = await sentinel.sentinel_masters()
            except (NotConnected, TooLate) as error:
                said.append(f"{where}: {error}")
                continue
            # The older protocol, which is used here, returns them by name.
            assert isinstance(known, dict)
            state = known.get(service_name)
            if state is None:
                said.append(f"{where} does not know it")
            elif not self.check_master_state(state, service_name):
                said.append(f"{where}: it is down")
            else:
                # Other tasks may have changed the order meanwhile: keep all of them.
                self.sentinels.remove(sentinel)
                self.sentinels.insert(0, sentinel)
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"No master found for {service_name!r}: {'; '.join(said)}")


def connect(settings: ValkeySettings) -> tuple[Client, Sentinels | None]:
    """Makes the client; sends nothing yet. Runs in the loop's thread."""
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
        # A server's answer to a client without a certificate is often lost with the connection.
        text += " (it may ask for a certificate: ssl_certfile)"
    is_refused = isinstance(error, OutOfMemoryError | ReadOnlyError)
    return (StoreRefused if is_refused else StoreUnavailable)(f"Valkey: {text}")
