"""The settings of the daemon (etc/forebay.yaml lists them all): frozen, and checked when built.

A model checks its keys, their ranges and the relations between them; daemon/config/load.py finds
the values.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from actors.config.observers import (
    EventSettings,
    NotificationName,
    NotificationSettings,
    check_notifications,
)
from actors.config.presets import with_preset
from actors.config.queue import QueueName, QueueSettings
from actors.config.schedules import ScheduleName, ScheduleSettings, check_schedules
from actors.config.secrets import Secret
from actors.config.section import (
    GIB,
    KIB,
    MIB,
    Clash,
    Count,
    Flag,
    Number,
    Section,
    merge,
)
from actors.config.triggers import Trigger, all_schedules, check_triggers
from actors.model.units import Duration, Size, durations, format_size, numbers, sizes
from forebay.limits import (
    FRAME_HEAD_BYTES,
    PRIORITY_MAX,
    RUN_HEAD_BYTES_MAX,
    RUN_RAW_BYTES_MAX,
)

SOCKET_PATH_BYTES_MAX: Final = 107
"""The length that fits into sun_path with its final zero."""

CHUNK_OVERHEAD_BYTES: Final = 4 * KIB
"""More than a chunk's head and one block's head take."""


def parse_mode(value: object) -> int:
    """A file mode in octal digits. A number is refused: 660 without quotes is decimal."""
    if isinstance(value, str) and 3 <= len(value) <= 4 and set(value) <= set("01234567"):
        mode = int(value, 8)
        if mode <= 0o777:
            return mode
    raise ValueError(f'{value!r} is not a file mode: write octal digits in quotes, as "0660"')


def name_or_id(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


FileMode = Annotated[
    int, BeforeValidator(parse_mode), PlainSerializer(lambda mode: f"{mode:04o}", str)
]
Account = Annotated[str, BeforeValidator(name_or_id)]
"""A user or group, by name or by number."""


class SocketSettings(Section):
    path: Path = Path("/run/forebay/forebay.sock")
    mode: FileMode = 0o660
    owner: Account | None = None
    group: Account | None = None
    allow_uids: tuple[Annotated[Count, numbers(0, 2**32 - 2)], ...] = ()
    """Users that may connect, in addition to `allow_gids`; both empty: all that the mode allows."""
    allow_gids: tuple[Annotated[Count, numbers(0, 2**32 - 2)], ...] = ()
    max_connections: Annotated[Count, numbers(1, 65536)] = 1024
    hello_timeout: Annotated[Duration, durations("10ms", "1h")] = 5
    frame_timeout: Annotated[Duration, durations("10ms", "1h")] = 30
    write_timeout: Annotated[Duration, durations("10ms", "1h")] = 30
    idle_timeout: Annotated[Duration, durations("0s", "365d")] = 0
    window_bytes: Annotated[Size, sizes("64Ki", "1Gi")] = 16 * MIB
    window_frames: Annotated[Count, numbers(1, 65536)] = 1024
    inflight_bytes: Annotated[Size, sizes("64Ki", "64Gi")] = 64 * MIB
    max_run_bytes: Annotated[Size, sizes("1Ki", format_size(RUN_RAW_BYTES_MAX))] = 4 * MIB

    @field_validator("path")
    @classmethod
    def _path_fits(cls, path: Path) -> Path:
        length = len(str(path).encode())
        if length > SOCKET_PATH_BYTES_MAX:
            raise ValueError(
                f"a Unix socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes, not {length}"
            )
        return path

    @model_validator(mode="after")
    def _windows_take_the_largest_run(self) -> Self:
        frame = FRAME_HEAD_BYTES + stored_run_bytes_max(self.max_run_bytes)
        if self.window_bytes < frame:
            raise Clash(
                f"window_bytes ({format_size(self.window_bytes)}) must take a run of "
                f"max_run_bytes ({format_size(self.max_run_bytes)}), which needs {frame} bytes",
                "window_bytes",
                "max_run_bytes",
            )
        if self.inflight_bytes < self.window_bytes:
            raise Clash(
                f"inflight_bytes ({format_size(self.inflight_bytes)}) must be at least "
                f"window_bytes ({format_size(self.window_bytes)})",
                "inflight_bytes",
                "window_bytes",
            )
        return self


def stored_run_bytes_max(raw_bytes: int) -> int:
    """The largest size of a run with a body of `raw_bytes`: Snappy may add a sixth."""
    return RUN_HEAD_BYTES_MAX + raw_bytes + raw_bytes // 6 + 32


class HttpSettings(Section):
    """The HTTP server: API, metrics and the page."""

    listen: str | None = "127.0.0.1:8077"
    """HOST:PORT; port 0: a free one; None: no server."""
    read_token_file: Path | None = None
    admin_token_file: Path | None = None
    hosts: tuple[str, ...] = ()
    """Other host names under which it may be addressed, for example behind a proxy."""
    show_payloads: Flag = False
    """Whether the read token shows payloads; the admin token always does."""
    request_bytes_max: Annotated[Size, sizes("64Ki", "64Mi")] = 2 * MIB
    max_connections: Annotated[Count, numbers(1, 4096)] = 256
    rate_limit: Annotated[Number, numbers(0, 10**6)] = 200
    """Requests per second per client; 0: no limit."""
    timeout: Annotated[Duration, durations("1s", "1h")] = 30
    """How long a request's body may take to arrive, and a client to read its answer."""

    @field_validator("listen")
    @classmethod
    def _listen_is_an_address(cls, listen: str | None) -> str | None:
        if listen is not None:
            host, _, port = listen.rpartition(":")
            if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
                raise ValueError(f"{listen!r} is not HOST:PORT, as 127.0.0.1:8077 or [::1]:8077")
        return listen

    @model_validator(mode="after")
    def _strangers_need_a_token(self) -> Self:
        if self.listen is None or self.read_token_file or self.admin_token_file:
            return self
        host = self.listen.rpartition(":")[0]
        if host not in ("localhost", "[::1]") and not host.startswith("127."):
            raise Clash(
                f"listen ({self.listen}) is not a loopback address: "
                "it needs read_token_file or admin_token_file",
                "listen",
            )
        return self


class SpoolSettings(Section):
    durability: Literal["fsync", "os", "memory"] = "fsync"
    chunk_size: Annotated[Size, sizes("64Ki", "1Gi")] = 64 * MIB
    max_bytes: Annotated[Size, sizes("128Ki", "1024Ti")] = 1 * GIB
    max_size: Annotated[Count, numbers(0, 10**12)] = 0
    """Runs; 0: no limit."""
    min_free_bytes: Annotated[Size, sizes("0", "1024Ti")] = 256 * MIB
    inmemory_runs: Annotated[Count, numbers(1, 10**6)] = 2048
    inmemory_bytes: Annotated[Size, sizes("64Ki", "64Gi")] = 16 * MIB
    meta_sync_interval: Annotated[Duration, durations("10ms", "1m")] = 1
    compression: Literal["snappy", "none"] = "snappy"
    """Applied to runs that arrive uncompressed."""
    spare_chunks: Annotated[Count, numbers(0, 64)] = 2
    dedup_runs: Annotated[Count, numbers(0, 10**7)] = 32768
    ballast_bytes: Annotated[Size, sizes("64Ki", "1Gi")] = 4 * MIB
    group_bytes_max: Annotated[Size, sizes("64Ki", "256Mi")] = 8 * MIB
    stage_ttl: Annotated[Duration, durations("1s", "365d")] = 24 * 3600
    """A write that is not heard of for this long is aborted."""
    receipt_ttl: Annotated[Duration, durations("1s", "3650d")] = 7 * 24 * 3600
    """How long after its publication a write's receipt is kept."""

    @model_validator(mode="after")
    def _two_chunks_fit(self) -> Self:
        if self.max_bytes < 2 * self.chunk_size:
            raise Clash(
                f"max_bytes ({format_size(self.max_bytes)}) must be at least twice "
                f"chunk_size ({format_size(self.chunk_size)}), "
                "so that one chunk can be freed while the next is written",
                "max_bytes",
                "chunk_size",
            )
        return self


def _check_url(type_: str, with_url: str, url: str | None, password: Secret | None) -> None:
    if type_ == with_url and not url:
        raise Clash(f"type {type_} needs a url", "url")
    if type_ != with_url and url:
        raise Clash(f"url is not valid for type {type_}", "url")
    _check_login(url, "url")
    if password is not None:
        if not url:
            raise Clash(f"password is not valid for type {type_}", "password")
        login, at, _ = urlsplit(url).netloc.rpartition("@")
        if at and ":" in login:
            raise Clash("the url has a password: leave it out there, or here", "password", "url")


def _check_login(url: str | None, key: str) -> None:
    """A plain `/`, `?` or `#` in a password ends the address there. The rest would be taken for a
    port, a path or a database, and quoted in error messages."""
    if not url or "://" not in url:
        return
    address, *rest = re.split("[/?#]", url.partition("://")[2], maxsplit=1)
    if "@" not in address and any("@" in text for text in rest):
        raise Clash(
            f"{key}: an @ follows the address: write / ? # @ in a password as %2F %3F %23 %40",
            key,
        )


class WarmSettings(Section):
    type: Literal["memory", "valkey"] = "memory"
    url: str | None = None
    """For Valkey or Redis: redis://, rediss://, unix:// or sentinel://."""
    password: Secret | None = None
    """Instead of a password in the URL. A new one takes effect at the next start."""
    timeout: Annotated[Duration, durations("50ms", "1m")] = 2
    """For one step of the shared queue; after that it counts as away."""
    prefix: Annotated[str, Field(pattern=r"^[^{}\s]{1,64}$")] = "forebay"
    """The prefix of all keys: the daemons of a fleet have the same."""

    @model_validator(mode="after")
    def _url_goes_with_the_type(self) -> Self:
        _check_url(self.type, "valkey", self.url, self.password)
        return self


class ColdSettings(Section):
    type: Literal["sqlite", "postgres"] = "sqlite"
    url: str | None = None
    """For PostgreSQL: postgresql://."""
    password: Secret | None = None
    """Instead of a password in `url` and `listen_url`. A new one takes effect at the next start."""
    acquire_timeout: Annotated[Duration, durations("1s", "1d")] = 300
    """How long a run acquired from cold may stay unsettled before it is acquired again."""
    timeout: Annotated[Duration, durations("100ms", "5m")] = 10
    """For one step of the store."""
    connections: Annotated[Count, numbers(1, 64)] = 3
    """PostgreSQL connections of this daemon, in addition to one that listens."""
    pooled: Flag = False
    """The URL leads to PgBouncer in transaction mode."""
    listen_url: str | None = None
    """A direct URL, past PgBouncer, to hear at once what other daemons have stored."""
    require_sync_standby: Flag = False
    """Hand nothing over to a server without a synchronous standby."""
    schema_name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "forebay"
    """PostgreSQL schema: the daemons of a fleet have the same."""

    @model_validator(mode="after")
    def _url_goes_with_the_type(self) -> Self:
        _check_url(self.type, "postgres", self.url, self.password)
        if self.url and not self.url.startswith(("postgresql://", "postgres://")):
            raise Clash("url must begin with postgresql://", "url")
        _check_login(self.listen_url, "listen_url")
        return self


class MemorySettings(Section):
    """Limits as a share of the memory that the daemon may use (cgroup aware)."""

    memory_limit_ratio: Annotated[Number, numbers(0.05, 1)] = 0.8
    """The daemon's share of the machine's, or its cgroup's, memory."""
    queue_memory_percent: Annotated[Number, numbers(0, 100)] = 0
    """The part of that for runs in warm and on their way there; 0: only the other limits apply."""


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


def filled_in(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the keys of presets, and with the defaults in every queue. Raises Clash if a
    preset cannot be found. Doing it again changes nothing."""
    given = tree.get("presets_dir")
    directory = Path(given) if isinstance(given, str | Path) else None
    filled = dict(tree)
    if "defaults" in tree:
        filled["defaults"] = with_preset(tree["defaults"], directory, "defaults.")
    if isinstance(queues := tree.get("queues"), dict):
        filled["queues"] = {
            name: merge(filled.get("defaults"), with_preset(own, directory, f"queues.{name}."))
            for name, own in queues.items()
        }
    return filled


class Settings(Section):
    socket: SocketSettings = SocketSettings()
    state_dir: Path = Path("/var/lib/forebay")
    fleet: Flag = False
    """Other daemons share the PostgreSQL of `cold`, and usually the Valkey of `warm`."""
    http: HttpSettings = HttpSettings()
    spool: SpoolSettings = SpoolSettings()
    warm: WarmSettings = WarmSettings()
    cold: ColdSettings = ColdSettings()
    memory: MemorySettings = MemorySettings()
    priorities: dict[str, Annotated[Count, numbers(0, PRIORITY_MAX)]] = Field(
        default={"high": 0, "normal": 5, "low": 10}
    )
    presets_dir: Path | None = None
    """Own presets, besides the shipped ones (actors/config/presets.py)."""
    auto_create_queues: Flag = True
    defaults: QueueSettings = QueueSettings()
    queues: dict[QueueName, QueueSettings] = Field(default={})
    """Each with the defaults merged in."""
    schedules: dict[ScheduleName, ScheduleSettings] = Field(default={})
    triggers: dict[ScheduleName, Trigger] = Field(default={})
    notifications: dict[NotificationName, NotificationSettings] = Field(default={})
    events: EventSettings = EventSettings()
    log: LogSettings = LogSettings()
    global_send_limit: Annotated[Count, numbers(0, 10**6)] = 0
    """Sends in flight of all queues together; 0: no limit."""
    drain_timeout: Annotated[Duration, durations("0s", "1h")] = 30

    def queue(self, name: str) -> QueueSettings | None:
        """The settings of a queue; None: it does not exist and pushing would not create it."""
        return self.queues.get(name, self.defaults if self.auto_create_queues else None)

    @model_validator(mode="before")
    @classmethod
    def _queues_start_from_the_defaults(cls, data: Any) -> Any:
        return filled_in(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _a_fleet_shares_rows(self) -> Self:
        if self.fleet and self.cold.type != "postgres":
            raise Clash(
                "fleet needs cold.type postgres: the daemons of a fleet share its rows",
                "fleet",
                "cold.type",
            )
        return self

    @model_validator(mode="after")
    def _shared_warm_needs_shared_cold(self) -> Self:
        if self.warm.type == "valkey" and self.cold.type != "postgres":
            raise Clash(
                "warm.type valkey needs cold.type postgres: Valkey holds copies of its rows",
                "warm.type",
                "cold.type",
            )
        return self

    @model_validator(mode="after")
    def _schedules_are_possible(self) -> Self:
        check_triggers(self.triggers, self.schedules, self.priorities)
        check_schedules(all_schedules(self.schedules, self.triggers), self.priorities)
        return self

    @model_validator(mode="after")
    def _notifications_are_possible(self) -> Self:
        queues = None if self.auto_create_queues else self.queues
        check_notifications(self.notifications, queues)
        return self

    @model_validator(mode="after")
    def _chunks_take_the_largest_run(self) -> Self:
        needed = stored_run_bytes_max(self.socket.max_run_bytes) + CHUNK_OVERHEAD_BYTES
        if self.spool.chunk_size < needed:
            raise Clash(
                f"spool.chunk_size ({format_size(self.spool.chunk_size)}) must take a run of "
                f"socket.max_run_bytes ({format_size(self.socket.max_run_bytes)}), "
                f"which needs {needed} bytes",
                "spool.chunk_size",
                "socket.max_run_bytes",
            )
        return self
