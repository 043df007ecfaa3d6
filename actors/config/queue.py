"""The settings of a queue: its handler, its limits, and how failures are handled."""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from actors.config.handlers import Handler, PullHandler
from actors.config.section import MIB, Clash, Count, Flag, Number, Section
from actors.model.patterns import check_pattern
from actors.model.rates import NO_LIMIT, RateLimit
from actors.model.units import Duration, Size, durations, format_duration, numbers, sizes
from forebay.errors import BadRun
from forebay.run import check_queue_name

RETRY_RULES_MAX: Final = 100


def check_queue(name: str) -> str:
    try:
        check_queue_name(name)
    except BadRun as problem:
        raise ValueError(str(problem)) from problem
    return name


QueueName = Annotated[str, AfterValidator(check_queue)]


class BackoffSettings(Section):
    enabled: Flag = True
    """False: retried at once."""
    initial: Annotated[Duration, durations("1ms", "1d")] = 5
    multiplier: Annotated[Number, numbers(1, 100)] = 2.0
    max: Annotated[Duration, durations("1ms", "30d")] = 300
    jitter: Annotated[Number, numbers(0, 1)] = 0.2

    @model_validator(mode="after")
    def _initial_is_below_max(self) -> Self:
        if self.initial > self.max:
            raise Clash(
                f"initial ({format_duration(self.initial)}) must not be longer than "
                f"max ({format_duration(self.max)})",
                "initial",
                "max",
            )
        return self


class RetryRule(Section):
    """What to do about matching failures; the first matching rule applies."""

    status: tuple[str, ...] = ()
    """HTTP statuses or exit codes, "404" or "5xx"; empty: any."""
    error: str = ""
    """A regular expression (actors/model/patterns.py), searched in the error's text; empty: any."""
    then: Literal["retry", "dead"] = "retry"
    delay: Annotated[Duration, durations("0s", "30d")] | None = None
    """Instead of the backoff's delay."""
    max_retries: Annotated[Count, numbers(0, 65534)] | None = None
    """Instead of the queue's value."""

    @field_validator("status", mode="before")
    @classmethod
    def _statuses_are_patterns(cls, value: object) -> object:
        given = value if isinstance(value, list | tuple) else [value]
        patterns = tuple(str(pattern).lower() for pattern in given)
        for pattern in patterns:
            if not re.fullmatch(r"[0-9]{1,3}|[1-5]xx", pattern):
                raise ValueError(f"{pattern!r} is not a valid status: write 404 or 5xx")
        return patterns

    @field_validator("error")
    @classmethod
    def _error_is_a_pattern(cls, error: str) -> str:
        check_pattern(error)
        return error


class BreakerSettings(Section):
    enabled: Flag = True
    threshold: Annotated[Count, numbers(1, 10**6)] = 5
    reset_timeout: Annotated[Duration, durations("10ms", "1d")] = 30
    half_open_probes: Annotated[Count, numbers(1, 1000)] = 1


class WorkersSettings(Section):
    """`count` 0: derived from the number of cores."""

    count: Annotated[Count, numbers(0, 10000)] = 0
    adaptive: Flag = False
    min: Annotated[Count, numbers(1, 10000)] = 1
    max: Annotated[Count, numbers(0, 10000)] = 0
    max_concurrent_sends: Annotated[Count, numbers(1, 1000)] = 1
    """Sends in flight per worker (or sender)."""

    @model_validator(mode="after")
    def _min_is_below_max(self) -> Self:
        if 0 < self.max < self.min:
            raise Clash(f"min ({self.min}) must not be more than max ({self.max})", "min", "max")
        return self


class PipelineSplitSettings(Section):
    enabled: Flag = False
    preparer_count: Annotated[Count, numbers(0, 10000)] = 0
    sender_count: Annotated[Count, numbers(0, 10000)] = 0
    channel_size: Annotated[Count, numbers(1, 65536)] = 256


class QueueSettings(Section):
    description: str = ""
    external_id: str | None = None
    """The queue's name in another system."""
    is_active: Flag = True
    """False: accepts pushes, delivers nothing."""
    handler: Handler = PullHandler()
    warm_max_items: Annotated[Count, numbers(1, 10**9)] = 5000
    warm_max_bytes: Annotated[Size, sizes("64Ki", "1Ti")] = 64 * MIB
    full_policy: Literal["block", "drop_newest", "drop_oldest"] = "block"
    full_timeout: Annotated[Duration, durations("0s", "1h")] = 30
    lease_time: Annotated[Duration, durations("0s", "7d")] = 0
    """How long a worker or consumer may keep items; 0: from the handler's timeout."""
    settle_durability: Literal["fsync", "lazy"] = "fsync"
    """When a consumer's report is answered: its outcomes are on disk (fsync), or will be within a
    second (lazy)."""
    max_retries: Annotated[Count, numbers(0, 65534)] = 8
    unique: Literal["off", "ignore", "reject", "replace"] = "off"
    """What happens to an item whose key another item of the queue holds (actors/model/keys.py)."""
    unique_window: Annotated[Duration, durations("0s", "365d")] = 0
    """How long a key stays taken after its item is delivered."""
    backoff: BackoffSettings = BackoffSettings()
    retry_rules: tuple[RetryRule, ...] = Field(default=(), max_length=RETRY_RULES_MAX)
    breaker: BreakerSettings = BreakerSettings()
    workers: WorkersSettings = WorkersSettings()
    pipeline_split: PipelineSplitSettings = PipelineSplitSettings()
    rate_limit: RateLimit = NO_LIMIT
    """For the destination: `100` (items per second), `5 requests/s`, `100000/d`; 0: no limit."""
    history: Literal["none", "failures", "all"] = "failures"
    retention: Annotated[Duration, durations("1m", "3650d")] = 7 * 86400
    """How long finished items stay in the history."""
