"""Opens the configured stores before anything else, and closes them last.

The embedded default is one SQLite file and this process's memory. A fleet's are PostgreSQL and
Valkey, which this daemon reaches through one asyncio loop (daemon/stores/bridge.py).

At the start PostgreSQL must answer: this daemon's rows there decide what the journal does. If it
does not answer, the daemon does not start, unless it was told to wait (`wait`). Valkey may be
unavailable, and is used when it answers; but a wrong address or password is reported at once. The
log says which server is opened, and how long and why the daemon waits for it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

import structlog
import trio

from actors.config.settings import ColdSettings, Settings, WarmSettings
from actors.model.units import format_duration
from actors.ports.tiers import StoreUnavailable
from daemon.errors import CannotStart, ConfigError
from daemon.state.identity import daemon_id
from daemon.stores.sqlite.store import SqliteCold

if TYPE_CHECKING:
    from daemon.stores.bridge import Bridge
    from daemon.stores.postgres.store import PostgresCold
    from daemon.stores.valkey.server import ValkeySettings
    from daemon.stores.valkey.warm import ValkeyWarm

log = structlog.get_logger()

Cold: TypeAlias = "SqliteCold | PostgresCold"
MakeCold = Callable[[Path, float], SqliteCold]

WAIT_S: Final = 1.0
TELL_S: Final = 5.0
WRONG: Final = (
    *("WRONGPASS", "NOAUTH", "NOPERM", "invalid username-password", "Authentication required"),
    *(
        "no permissions to",
        "has no permissions",
        "Name or service",
        "not enabled on this node",
        "unknown command",
    ),
    # TLS: whom to trust is a matter of the configuration, here or there.
    *("CERTIFICATE_VERIFY_FAILED", "CERTIFICATE_REQUIRED", "WRONG_VERSION_NUMBER"),
    *("KEY_VALUES_MISMATCH", "ALERT_UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "NO_CERTIFICATE_OR_CRL"),
)
"""Texts in Valkey's refusals that waiting does not fix."""
WRONG_COLD: Final = ("CERTIFICATE_VERIFY_FAILED", "PostgreSQL: the URL:")
"""The same of PostgreSQL's. A user or a database that is not there yet may come; of such a user it
says that the password is wrong."""


@dataclass(slots=True)
class Stores:
    cold: Cold
    remote: "ValkeyWarm | None" = None
    """The warm queue that a fleet shares."""
    daemon: bytes = b""
    """This daemon's id; empty if it shares no store with other daemons."""
    wakes: list[Callable[[str], None]] = field(default_factory=list)
    """Called when another daemon has put something into cold."""

    shared_cold: "PostgresCold | None" = None
    """The cold store, where a fleet shares it."""

    @property
    def is_shared(self) -> bool:
        return self.shared_cold is not None

    def wake(self, queue: str) -> None:
        for wake in self.wakes:
            wake(queue)


@asynccontextmanager
async def open_stores(
    settings: Settings, make_cold: MakeCold = SqliteCold, *, wait: bool = False
) -> AsyncIterator[Stores]:
    if settings.cold.type == "sqlite":
        cold = make_cold(settings.state_dir / "cold.sqlite", settings.cold.timeout)
        cold.leave_free(max(settings.spool.min_free_bytes, settings.spool.ballast_bytes))
        await cold.open()
        try:
            yield Stores(cold)
        finally:
            await cold.close()
        return
    # The drivers take a tenth of a second to import: a daemon without servers does not load them.
    from daemon.stores.bridge import Bridge

    async with AsyncExitStack() as stack:
        bridge = Bridge("stores")
        await bridge.open()
        stack.push_async_callback(bridge.close)
        daemon = daemon_id(settings.state_dir)
        stores: list[Stores] = []
        shared = _postgres(settings.cold, daemon, bridge, lambda queue: stores[0].wake(queue))
        stack.push_async_callback(shared.close)
        await _reach(shared, settings.cold, wait=wait)
        remote = None
        if settings.warm.type == "valkey":
            remote = _valkey(settings, daemon, bridge)
            stack.push_async_callback(remote.close)
            await _check(remote, settings, wait=wait)
        stores.append(Stores(shared, remote, daemon, shared_cold=shared))
        yield stores[0]


def _postgres(
    settings: ColdSettings, daemon: bytes, bridge: "Bridge", on_wake: Callable[[str], None]
) -> "PostgresCold":
    from daemon.stores.postgres.store import PostgresCold, PostgresSettings

    assert settings.url is not None
    try:
        where = PostgresSettings(
            settings.url,
            settings.timeout,
            schema=settings.schema_name,
            connections_max=settings.connections,
            require_sync_standby=settings.require_sync_standby,
            is_pooled=settings.pooled,
            listen_url=settings.listen_url,
        )
        return PostgresCold(where, daemon, bridge, on_wake)
    except ValueError as problem:
        raise ConfigError(f"cold.url: {problem}") from problem


def _valkey(settings: Settings, daemon: bytes, bridge: "Bridge") -> "ValkeyWarm":
    from daemon.stores.valkey.warm import ValkeyWarm

    where = check_valkey(settings.warm)
    return ValkeyWarm(where, daemon, bridge, rows_valid_s=settings.warm.valid)


def check_valkey(warm: WarmSettings) -> "ValkeySettings":
    """Where Valkey is; ConfigError if the URL, or a certificate that it names, cannot be used."""
    from daemon.stores.valkey.server import ValkeySettings
    from daemon.stores.valkey.url import read_url

    assert warm.url is not None
    try:
        where = ValkeySettings(warm.url, timeout_s=warm.timeout, prefix=warm.prefix)
        read_url(warm.url).check_files()
    except (ValueError, OSError) as problem:
        raise ConfigError(f"warm.url: {problem}") from problem
    return where


async def _reach(cold: "PostgresCold", settings: ColdSettings, *, wait: bool) -> None:
    """PostgreSQL answers, and its schema is this version's."""
    waiting = _Waiting(settings.url or "", settings.timeout)
    while True:
        try:
            await cold.open()
        except StoreUnavailable as problem:
            if any(mark in str(problem) for mark in WRONG_COLD):
                raise ConfigError(f"{waiting.where} cannot be used: {problem}") from problem
            if not wait:
                raise CannotStart(
                    f"{waiting.where} cannot be used: {problem} (--wait-for-stores waits for it)"
                ) from problem
            await waiting.wait(problem)
        else:
            return


async def _check(remote: "ValkeyWarm", settings: Settings, *, wait: bool) -> None:
    """Valkey lets this daemon in, as far as it can be asked."""
    waiting = _Waiting(settings.warm.url or "", settings.warm.timeout)
    while True:
        try:
            await remote.generation()
        except StoreUnavailable as problem:
            if is_wrong(str(problem)):
                raise ConfigError(f"{waiting.where} cannot be used: {problem}") from problem
            if not wait:
                log.warning("daemon.without_store", store=waiting.where, error=str(problem))
                return
            await waiting.wait(problem)
        else:
            return


class _Waiting:
    """Says what is waited for: which server at once, and every `TELL_S` how long by now."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.where = address_of_store(url)
        self._began_s = trio.current_time()
        self._told_s = -TELL_S
        log.info("daemon.opens_store", store=self.where, timeout=format_duration(timeout_s))

    async def wait(self, problem: StoreUnavailable) -> None:
        """Until the next try."""
        waited_s = trio.current_time() - self._began_s
        if waited_s - self._told_s >= TELL_S:
            self._told_s = waited_s
            log.warning(
                "daemon.waits_for_store",
                store=self.where,
                error=str(problem),
                waited_s=round(waited_s),
            )
        await trio.sleep(WAIT_S)


def is_wrong(problem: str) -> bool:
    """Whether waiting cannot fix it. With several Sentinels, all of them must have said so."""
    return all(any(mark in said for mark in WRONG) for said in problem.split("; "))


def address_of_store(url: str) -> str:
    """For messages and logs: without a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
