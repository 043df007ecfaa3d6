"""Settings of notifications: what is reported, about which queues, where to, and how often.

Each has a name. A model checks its own keys and their relations; `check_notifications` checks what
needs the whole configuration (whether the notification queue exists).
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from actors.config.http import check_headers, check_url, header_texts
from actors.config.queue import QueueName
from actors.config.schedules import check_name
from actors.config.secrets import Secret, TextOrSecret
from actors.config.section import GIB, MIB, Clash, Count, Number, Section
from actors.model.units import Duration, Size, durations, format_size, numbers, sizes


class EventSettings(Section):
    """Settings of the event log: what is recorded, in which format, and how much is kept."""

    mode: Literal["off", "sampled", "all"] = "off"
    """`sampled`: everything about some runs, nothing about the others."""
    format: Literal["ndjson", "parquet"] = "ndjson"
    sample: Annotated[Number, numbers(0.0001, 1)] = 0.01
    """The share of runs if `mode` is `sampled`."""
    directory: Path | None = None
    """None: `events` in the state directory."""
    roll_bytes: Annotated[Size, sizes("64Ki", "1Gi")] = 16 * MIB
    roll_interval: Annotated[Duration, durations("1s", "1d")] = 300
    max_bytes: Annotated[Size, sizes("128Ki", "1Ti")] = 1 * GIB
    """Size of all files together; above it the oldest are deleted."""

    @property
    def share(self) -> float:
        """The share of runs whose events are recorded."""
        return self.sample if self.mode == "sampled" else float(self.mode == "all")

    @model_validator(mode="after")
    def _two_files_fit(self) -> Self:
        if self.max_bytes < 2 * self.roll_bytes:
            raise Clash(
                f"max_bytes ({format_size(self.max_bytes)}) must be at least twice "
                f"roll_bytes ({format_size(self.roll_bytes)}), "
                "so that one file is there while the next is written",
                "max_bytes",
                "roll_bytes",
            )
        return self


NOTIFICATIONS_MAX: Final = 32

Occasion = Literal["dead", "trigger_failed"]
GroupKey = Literal["queue", "error_type"]


class WebhookSettings(Section):
    """The address that notices are posted to, as JSON."""

    url: TextOrSecret
    headers: dict[str, TextOrSecret] = Field(default={})
    """In addition to forebay's own."""
    timeout: Annotated[Duration, durations("100ms", "1m")] = 10
    """For one try, from the connection to the end of the answer."""
    ca_file: Path | None = None
    """Trusted authorities, in addition to the system's."""

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str | Secret) -> str | Secret:
        if isinstance(url, str):
            check_url(url)
        return url

    @field_validator("headers")
    @classmethod
    def _headers_are_headers(cls, headers: dict[str, str | Secret]) -> dict[str, str | Secret]:
        check_headers(headers)
        return headers

    @model_validator(mode="after")
    def _authorities_need_tls(self) -> Self:
        if self.ca_file is not None and isinstance(self.url, str):
            check_tls(self.url)
        return self

    def check_secrets(self) -> None:
        """Raises ValueError if a secret, which must have been read, cannot be what it is meant
        for. Nothing of it is repeated."""
        if isinstance(self.url, Secret):
            try:
                check_url(self.url.value)
            except ValueError:
                raise ValueError("url: the secret is not a valid http(s) URL") from None
            if self.ca_file is not None:
                check_tls(self.url.value)
        header_texts(self.headers)


def check_tls(url: str) -> None:
    if not url.startswith("https:"):
        raise Clash("ca_file needs an https url", "ca_file", "url")


class NotificationSettings(Section):
    description: str = ""
    on: Annotated[tuple[Occasion, ...], Field(min_length=1)] = ("dead", "trigger_failed")
    queues: tuple[str, ...] = ()
    """Names or patterns (`crm-*`) of the queues whose dead letters and triggers are reported;
    empty: all."""
    webhook: WebhookSettings | None = None
    queue: QueueName | None = None
    """The queue to which an item is pushed for each notice."""
    group_by: tuple[GroupKey, ...] = ("queue", "error_type")
    """Incidents that agree in all of these share a notice. Empty: all incidents do."""
    window: Annotated[Duration, durations("1s", "1d")] = 60
    """A group is reported at once, and then at most once per window."""
    rate: Annotated[Count, numbers(1, 1000)] = 6
    """At most this many notices per minute."""

    @model_validator(mode="after")
    def _somebody_is_told(self) -> Self:
        if self.webhook is None and self.queue is None:
            raise ValueError("needs a webhook, a queue, or both")
        return self

    def wants(self, occasion: Occasion, queue: str | None) -> bool:
        """Whether this is reported. A trigger without a queue is not filtered by queue."""
        if occasion not in self.on:
            return False
        if queue is None or not self.queues:
            return True
        return any(fnmatchcase(queue, pattern) for pattern in self.queues)


NotificationName = Annotated[str, AfterValidator(check_name)]


def check_notifications(
    notifications: Mapping[str, NotificationSettings], has_queue: Mapping[str, Any] | None
) -> None:
    """Checks what needs the whole configuration. `has_queue`: the existing queues; None: any name
    is allowed."""
    if len(notifications) > NOTIFICATIONS_MAX:
        raise Clash(f"there are at most {NOTIFICATIONS_MAX} notifications", "notifications")
    for name, each in notifications.items():
        if has_queue is not None and each.queue is not None and each.queue not in has_queue:
            raise Clash(
                f"notifications.{name}.queue: there is no queue {each.queue!r}, and none is "
                "created (auto_create_queues)",
                f"notifications.{name}.queue",
            )


def notice_queues(notifications: Mapping[str, NotificationSettings]) -> frozenset[str]:
    """The queues that receive notices: their own dead letters are not reported, so that notices do
    not cause notices."""
    return frozenset(each.queue for each in notifications.values() if each.queue is not None)
