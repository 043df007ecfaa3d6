"""Opens the configured stores before anything else, and closes them last.

The embedded default is one SQLite file and this process's memory. A fleet's are PostgreSQL and
Valkey, which this daemon reaches through one asyncio loop (daemon/stores/bridge.py).

At the start PostgreSQL must answer: this daemon's rows there decide what the journal does. If it
does not answer, the daemon does not start, unless it was told to wait (`wait`). Valkey may be
unavailable, and is used when it answers; but a wrong address or password is reported at once. The
log says which server is opened, and how long and why the daemon waits for it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog
import trio

from actors.config.book import Kept
from actors.config.catalogue import Definitions
from actors.config.schedules import KeptSchedules
from actors.config.settings import ColdSettings, Settings, WarmSettings
from actors.config.triggers import KeptTriggers
from actors.cron.cron import KeptCron
from actors.fleet.fleet import FleetStores
from actors.model.units import format_duration
from actors.observers.event_log import EventSink
from actors.ports.fleet import RemoteWarm
from actors.ports.journal import Journal as JournalPort
from actors.ports.tiers import ColdQueue, StoreUnavailable
from actors.workers.dispatch import OpenHandler
from daemon.config.secrets import read_secrets
from daemon.errors import CannotStart, ConfigError
from daemon.events import open_sink
from daemon.handlers import usable_handler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.state.identity import daemon_id
from daemon.state.kept_file import QUEUES, QUEUES_BALLAST_BYTES, SCHEDULES, TRIGGERS, KeptFile
from daemon.stores.sqlite.store import SqliteCold

if TYPE_CHECKING:
    from daemon.stores.bridge import Bridge
    from daemon.stores.postgres.store import PostgresCold
    from daemon.stores.valkey.server import ValkeySettings
    from daemon.stores.valkey.warm import ValkeyWarm

log = structlog.get_logger()

MakeFiles = Callable[[Path], Files]
MakeCold = Callable[[Path, float], SqliteCold]

WAIT_S: Final = 1.0
TELL_S: Final = 5.0
ALIVE_MS: Final = 30_000
"""A daemon whose row in PostgreSQL is newer than this is alive; rows are written every 5 s."""
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
    """Everything outside the process that the daemon works with."""

    journal: JournalPort
    cold: ColdQueue
    definitions: Kept[Definitions]
    """Queues and pauses that were made at run time."""
    cron: KeptCron
    """The same for schedules and triggers."""
    open_handler: OpenHandler = usable_handler
    event_sink: EventSink | None = None
    """Writes events; None: the event log is off."""
    remote: RemoteWarm | None = None
    """The warm queue that a fleet shares."""
    fleet: FleetStores = field(default_factory=FleetStores)
    on_wake: Callable[[str], None] = lambda _: None
    """Called when another daemon has put something into cold, or has something to say."""
    listen: Callable[[], Awaitable[None]] = trio.sleep_forever
    """Hears what other daemons say; never returns."""
    is_shared: bool = False
    """Other daemons use the same cold store."""


@asynccontextmanager
async def open_stores(
    settings: Settings,
    make_files: MakeFiles = Files,
    make_cold: MakeCold = SqliteCold,
    *,
    wait: bool = False,
) -> AsyncIterator[Stores]:
    """`make_files` and `make_cold` let a test stand between the stores and the disk. `wait`: for
    servers that do not answer."""
    journal = Journal(make_files(settings.state_dir / "spool"), settings.spool)
    async with AsyncExitStack() as stack:
        if settings.cold.type == "sqlite":
            cold = make_cold(settings.state_dir / "cold.sqlite", settings.cold.timeout)
            cold.leave_free(max(settings.spool.min_free_bytes, settings.spool.ballast_bytes))
            stack.push_async_callback(cold.close)
            await cold.open()
            # Runs that an earlier process had taken are free again: their leases need not end.
            await cold.release_all()
            stores = local_stores(settings, journal, cold)
        else:
            stores = await _open_shared(settings, journal, stack, wait=wait)
        yield stores


def local_stores(settings: Settings, journal: JournalPort, cold: ColdQueue) -> Stores:
    """With the files of the state directory, and without servers."""
    directory = settings.state_dir
    return Stores(
        journal,
        cold,
        KeptFile(directory / QUEUES, Definitions(), QUEUES_BALLAST_BYTES).open(),
        KeptCron(
            KeptFile(directory / SCHEDULES, KeptSchedules()).open(),
            KeptFile(directory / TRIGGERS, KeptTriggers()).open(),
        ),
        event_sink=open_sink(settings.events, directory),
    )


async def _open_shared(
    settings: Settings, journal: JournalPort, stack: AsyncExitStack, *, wait: bool
) -> Stores:
    # The drivers take a tenth of a second to import: a daemon without servers does not load them.
    from daemon.stores.bridge import Bridge

    bridge = Bridge("stores")
    await bridge.open()
    stack.push_async_callback(bridge.close)
    daemon = daemon_id(settings.state_dir)
    opened: list[Stores] = []
    shared = _postgres(settings.cold, daemon, bridge, lambda said: opened[0].on_wake(said))
    stack.push_async_callback(shared.close)
    await _reach(shared, settings.cold, wait=wait)
    await shared.release_all()
    stores = local_stores(settings, journal, shared)
    stores.cron = stores.cron._replace(daemon=daemon)
    stores.fleet = FleetStores(daemon, members=shared.members)
    if settings.fleet:
        stores.is_shared = True
        stores.fleet = replace(stores.fleet, rows=shared.shared_rows)
    else:
        await _check_alone(shared, daemon, settings.cold)
    stores.listen = shared.listen
    opened.append(stores)
    if settings.warm.type == "valkey":
        from daemon.stores.valkey.shared_limits import SharedBreaker, SharedRate

        # The keys of a daemon that is alone are its own.
        private = "" if settings.fleet else f":{daemon.hex()}"
        stores.remote = remote = _valkey(settings, bridge, private)
        stack.push_async_callback(remote.close)
        await _check(remote, settings, wait=wait)
        stores.fleet = replace(stores.fleet, rows=shared.shared_rows)
        if settings.fleet:
            stores.fleet = replace(
                stores.fleet,
                breaker=SharedBreaker(remote.server, daemon),
                rate=SharedRate(remote.server, daemon),
            )
    return stores


def _postgres(
    settings: ColdSettings, daemon: bytes, bridge: "Bridge", on_wake: Callable[[str], None]
) -> "PostgresCold":
    from daemon.stores.postgres.store import PostgresCold, PostgresSettings

    assert settings.url is not None
    read_secrets(settings, "cold")
    try:
        where = PostgresSettings(
            settings.url,
            settings.timeout,
            schema=settings.schema_name,
            connections_max=settings.connections,
            require_sync_standby=settings.require_sync_standby,
            is_pooled=settings.pooled,
            listen_url=settings.listen_url,
            password=None if settings.password is None else settings.password.value,
        )
        return PostgresCold(where, daemon, bridge, on_wake)
    except ValueError as problem:
        raise ConfigError(f"cold.url: {problem}") from problem


def _valkey(settings: Settings, bridge: "Bridge", private: str) -> "ValkeyWarm":
    from daemon.stores.valkey.warm import ValkeyWarm

    where = check_valkey(settings.warm)
    return ValkeyWarm(replace(where, prefix=where.prefix + private), bridge)


def check_valkey(warm: WarmSettings) -> "ValkeySettings":
    """Where Valkey is; ConfigError if the URL, a certificate that it names, or the password cannot
    be used."""
    from daemon.stores.valkey.server import ValkeySettings
    from daemon.stores.valkey.url import read_url

    assert warm.url is not None
    read_secrets(warm, "warm")
    try:
        password = "" if warm.password is None else warm.password.value
        where = ValkeySettings(
            warm.url, password=password, timeout_s=warm.timeout, prefix=warm.prefix
        )
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


async def _check_alone(cold: "PostgresCold", daemon: bytes, settings: ColdSettings) -> None:
    """No other daemon uses the schema now: without `fleet` both would take each other's rows."""
    now_ms, members = await cold.members.all()
    for member in members:
        is_alive = member.report.state != "stopped" and now_ms - member.seen_ms < ALIVE_MS
        if member.daemon != daemon and is_alive:
            raise ConfigError(
                f"the daemon of {member.host} uses the schema {settings.schema_name} of "
                f"{address_of_store(settings.url or '')}: set `fleet: true` on both hosts, or "
                "another cold.schema_name"
            )


async def _check(remote: "ValkeyWarm", settings: Settings, *, wait: bool) -> None:
    """Valkey lets this daemon in, as far as it can be asked."""
    waiting = _Waiting(settings.warm.url or "", settings.warm.timeout)
    while True:
        try:
            await remote.generation()
            left = await remote.left_by_older()
        except StoreUnavailable as problem:
            if is_wrong(str(problem)):
                raise ConfigError(f"{waiting.where} cannot be used: {problem}") from problem
            if not wait:
                log.warning("daemon.without_store", store=waiting.where, error=str(problem))
                return
            await waiting.wait(problem)
        else:
            if left:
                queues = ", ".join(left[:5])
                raise CannotStart(
                    f"{waiting.where} holds items of an older forebay in {queues}: run that "
                    "version on all hosts until its warm queues are empty, or, if its daemons "
                    f"are gone for good, delete its keys ({settings.warm.prefix}:queues and "
                    f"{settings.warm.prefix}:{{queue}}:*)"
                )
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
