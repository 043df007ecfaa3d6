"""The connection to Valkey or Redis: where it is, how long it may take, and what its errors mean.

    redis://[user:password@]host:port/db     rediss://…  the same with TLS, verified
    unix:///path?db=0                        redis-cluster://host:port,host:port (rediss-cluster)
    sentinel://host:port,host:port/service?sentinel_password=…&ssl=true

What stands behind a `?` goes to the driver (`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, …).

This is the store's edge: whatever the driver raises, a refused connection, READONLY after a
failover, OOM, LOADING, is `StoreUnavailable` here, once. Nothing is sent twice: a command whose
answer is lost may have been carried out, and only the caller knows whether it may be repeated. So
the driver's own retries are off. A step that is cancelled or late loses its connection with it.

Needs Redis 6.2 or Valkey 7.2: no command or option is younger.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import redis.asyncio as driver
import structlog
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)

from actors.tiers import StoreUnavailable
from daemon.bridge import Bridge

log = structlog.get_logger()

T = TypeVar("T")
Client = driver.Redis | RedisCluster
Argument = bytes | str | int | float

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
DRIVER_ERRORS: Final = (RedisError, RedisClusterException, OSError, TimeoutError)
SCHEMES: Final = (
    "redis", "rediss", "unix", "sentinel", "redis-cluster", "rediss-cluster",
)  # fmt: skip


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
        scheme = urlsplit(self.url).scheme
        if scheme not in SCHEMES:
            raise ValueError(f"{scheme}:// is none of {', '.join(f'{s}://' for s in SCHEMES)}")
        if "{" in self.prefix or not self.prefix:
            raise ValueError("a prefix of keys is not empty, and has no braces")
        _addresses(self.url)


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
        self._sentinels: Sentinel | None = None

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

        async def attempt() -> T:
            client = self.client()
            try:
                return await work(client)
            except ReadOnlyError as error:
                # What was the primary is none now: the name may mean another host already.
                if isinstance(client, driver.Redis):
                    with suppress(*DRIVER_ERRORS):
                        await client.connection_pool.disconnect(inuse_connections=False)
                raise _translated(error) from error
            except DRIVER_ERRORS as error:
                raise _translated(error) from error

        return await self.bridge.run(attempt, self.settings.timeout_s, shield=shield)

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


def connect(settings: ValkeySettings) -> tuple[Client, Sentinel | None]:
    """Nothing is sent yet. In the loop's thread."""
    options: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": settings.timeout_s,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        # The older protocol: nothing that is used here needs the newer one.
        "protocol": 2,
    }
    if settings.username:
        options["username"] = settings.username
    if settings.password:
        options["password"] = settings.password
    scheme = urlsplit(settings.url).scheme
    if scheme.endswith("-cluster"):
        return _cluster(settings, options), None
    if scheme == "sentinel":
        return _sentinel(settings, options)
    if scheme == "unix":
        del options["socket_keepalive"]
    pool = driver.BlockingConnectionPool.from_url(
        settings.url,
        max_connections=settings.connections_max,
        timeout=settings.timeout_s,
        **options,
    )
    return driver.Redis.from_pool(pool), None


def _cluster(settings: ValkeySettings, options: dict[str, Any]) -> RedisCluster:
    parts = urlsplit(settings.url)
    options |= _login(settings.url) | dict(parse_qsl(parts.query))
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in _addresses(settings.url)],
        ssl=parts.scheme == "rediss-cluster",
        max_connections=settings.connections_max,
        **options,
    )


def _sentinel(settings: ValkeySettings, options: dict[str, Any]) -> tuple[driver.Redis, Sentinel]:
    parts = urlsplit(settings.url)
    query = dict(parse_qsl(parts.query))
    of_sentinels = {
        key.removeprefix("sentinel_"): query.pop(key)
        for key in list(query)
        if key.startswith("sentinel_")
    }
    if query.pop("ssl", "false") in ("true", "1"):
        query["ssl"] = of_sentinels["ssl"] = True  # type: ignore[assignment]
    options |= _login(settings.url) | query
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        _addresses(settings.url),
        sentinel_kwargs={
            "socket_timeout": settings.timeout_s,
            "socket_connect_timeout": settings.timeout_s,
            "retry": options["retry"],
            "protocol": 2,
            **of_sentinels,
        },
    )
    client: driver.Redis = sentinels.master_for(parts.path.strip("/"), **options)
    return client, sentinels


def _login(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    login, _, _ = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    found = {"username": unquote(username), "password": unquote(password)}
    return {key: value for key, value in found.items() if value}


def _addresses(url: str) -> list[tuple[str, int]]:
    """Of all hosts. ValueError if there is none, or the URL lacks something else."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("unix:// lacks the path of the socket: unix:///run/valkey.sock")
        return []
    default = SENTINEL_PORT if parts.scheme == "sentinel" else PORT
    found: list[tuple[str, int]] = []
    for address in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{address}")
        if not one.hostname:
            raise ValueError(f"{without_password(url)} names no host")
        found.append((one.hostname, one.port or default))
    if len(found) > 1 and parts.scheme in ("redis", "rediss"):
        raise ValueError(f"{parts.scheme}:// has one host; a cluster is {parts.scheme}-cluster://")
    if parts.scheme == "sentinel" and not parts.path.strip("/"):
        raise ValueError("sentinel:// lacks the name of the service: sentinel://host:26379/service")
    return found


def without_password(url: str) -> str:
    """For messages and logs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _translated(error: Exception) -> StoreUnavailable:
    text = str(error) or type(error).__name__
    return StoreUnavailable(f"Valkey: {text}")
