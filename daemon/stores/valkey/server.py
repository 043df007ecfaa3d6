"""The connection to Valkey or Redis: how long it may take, and what its errors mean.

Every error of the driver (a refused connection, READONLY after a failover, OOM, LOADING) becomes
`StoreUnavailable` here. Nothing is sent twice: a command whose answer is lost may have been carried
out, and only the caller knows whether it may be repeated. So the driver's own retries are off. A
step that is cancelled or late closes its connection.

After a failover another server is the primary: every new connection asks the Sentinels again
(`Sentinels`). A cluster is not supported, since a step may use keys of several slots.

Needs Redis 6.2 or Valkey 7.2: no command or option is younger.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import redis.asyncio as driver
import structlog
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as TooLate

from actors.ports.tiers import StoreRefused, StoreUnavailable
from daemon.stores.bridge import Bridge, LoopSemaphore
from daemon.stores.valkey.url import ValkeyUrl, read_url

log = structlog.get_logger()

T = TypeVar("T")
Client = driver.Redis
Argument = bytes | str | int | float

DRIVER_ERRORS: Final = (RedisError, OSError, TimeoutError)
ENDS: Final = ("closed by server", "reset by peer")


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


async def send(client: Client, *args: Argument) -> Any:
    """One command. In the loop's thread, as a part of a step."""
    return await client.execute_command(*args)  # type: ignore[no-untyped-call]


class Server:
    def __init__(self, settings: ValkeySettings, bridge: Bridge) -> None:
        self.settings = settings
        self.bridge = bridge
        self._client: Client | None = None
        self._sentinels: Sentinels | None = None
        self._url = read_url(settings.url)
        self._room = LoopSemaphore(settings.connections_max)

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
        """Runs a script many times in one round trip. Each run is atomic by itself."""

        async def work(client: Client) -> list[Any]:
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
        return await self.step(lambda client: send(client, *args))

    async def step(self, work: Callable[[Client], Awaitable[T]], *, shield: bool = False) -> T:
        """Does `work` within one deadline."""

        async def attempt() -> T:
            async with self._room:
                return await self._attempt(work)

        return await self.bridge.run(attempt, self.settings.timeout_s, shield=shield)

    async def _attempt(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """In the loop's thread."""
        client = self.client()
        try:
            return await work(client)
        except ReadOnlyError as error:
            # This server is no longer the primary: the name may point to another host already.
            with suppress(*DRIVER_ERRORS):
                await client.connection_pool.disconnect(inuse_connections=False)
            raise _translated(error, self._url) from error
        except DRIVER_ERRORS as error:
            raise _translated(error, self._url) from error

    async def check_policy(self) -> None:
        """Warns if the server evicts keys: it would forget slices that daemons believe it has."""

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
