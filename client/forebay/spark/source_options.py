"""The options of a read, as texts: their names and their values.

They are checked on the driver, before anything is read. An `OptionError` names the option, the
given value and the possible ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.client import TIMEOUT_S
from forebay.errors import BadRun
from forebay.head import check_queue_name
from forebay.limits import CLAIM_ITEMS_MAX, CONSUMER_BYTES_MAX
from forebay.spark.options import OptionError, check_names, read_timeout

READ_OPTIONS: Final = ("queue", "state", "flow", "action", "error", "socket", "timeout")
STREAM_OPTIONS: Final = (
    "queue",
    "consumer",
    "maxItemsPerTrigger",
    "partitions",
    "socket",
    "timeout",
)
STATES: Final = ("queued", "cold", "dead", "history")
PARTITIONS_MAX: Final = 4096

ITEMS_DEFAULT: Final = 4_000_000
"""A micro-batch costs Spark 0.25 to 0.5 s even with ten items: a million items of 300 bytes were
drained to Parquet in 4 s by one, and in 11 s by ten of them (2 cores, not quiet)."""
PARTITIONS_DEFAULT: Final = 4


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Of a look at a queue."""

    queue: str
    state: str = "queued"
    flow: str | None = None
    action: str | None = None
    error: str | None = None
    socket: str | None = None
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Of a queue that is read as a stream."""

    queue: str
    consumer: str
    items: int = ITEMS_DEFAULT
    """How many items a micro-batch has at most."""
    partitions: int = PARTITIONS_DEFAULT
    """How many tasks read a micro-batch, if it has at least as many rows."""
    socket: str | None = None
    timeout_s: float = TIMEOUT_S


def read_options(given: Mapping[str, str]) -> ReadOptions:
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, READ_OPTIONS)
    state = options.get("state", "queued").lower()
    if state not in STATES:
        raise OptionError("state", state, f"one of {', '.join(STATES)}")
    for name in ("flow", "action", "error"):
        if name in options and state != "dead":
            raise OptionError(name, options[name], "chooses among dead letters: state is dead")
    return ReadOptions(
        queue=_queue(options),
        state=state,
        flow=options.get("flow"),
        action=options.get("action"),
        error=options.get("error"),
        socket=options.get("socket"),
        timeout_s=read_timeout(options, TIMEOUT_S),
    )


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, STREAM_OPTIONS)
    return StreamOptions(
        queue=_queue(options),
        consumer=_consumer(options),
        items=_number(options, "maxItemsPerTrigger", ITEMS_DEFAULT, CLAIM_ITEMS_MAX),
        partitions=_number(options, "partitions", PARTITIONS_DEFAULT, PARTITIONS_MAX),
        socket=options.get("socket"),
        timeout_s=read_timeout(options, TIMEOUT_S),
    )


def _queue(options: Mapping[str, str]) -> str:
    queue = options.get("queue")
    if not queue:
        raise OptionError("queue", queue, 'the queue to read is needed: .option("queue", …)')
    try:
        check_queue_name(queue)
    except BadRun as problem:
        raise OptionError("queue", queue, str(problem)) from None
    return queue


def _consumer(options: Mapping[str, str]) -> str:
    consumer = options.get("consumer")
    if not consumer:
        raise OptionError(
            "consumer",
            consumer,
            "a name for this query is needed. The daemon keeps under it what the query has claimed "
            "and not yet committed; Spark does not tell a source which query or checkpoint it "
            "reads for. Choose a name that stays the same when the query is started again, and "
            "that no other query has",
        )
    if len(consumer.encode()) > CONSUMER_BYTES_MAX:
        raise OptionError("consumer", consumer, f"a text of 1 to {CONSUMER_BYTES_MAX} bytes")
    return consumer


def _number(options: Mapping[str, str], name: str, default: int, last: int) -> int:
    given = options.get(name.lower())
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= last:
        raise OptionError(name, given, f"a whole number, 1 to {last}")
    return int(given)
