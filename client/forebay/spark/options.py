"""The options of a write, as texts: their names, their values, and the queue that they name.

Everything here is checked on the driver, before data moves. An `OptionError` names the option, the
given value and the possible ones. plan.py checks the columns.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from forebay.client import TIMEOUT_S, Client
from forebay.errors import BadRun, Refused
from forebay.head import check_queue_name, pack_headers
from forebay.limits import (
    APP_BYTES_MAX,
    RUN_ITEMS_MAX,
    RUN_RAW_BYTES_DEFAULT,
    RUN_RAW_BYTES_MAX,
    VERSION_MAX,
    WRITE_ID_BYTES,
)
from forebay.strict_json import loads
from forebay.writes import WRITE_HEADER

SINK_OPTIONS: Final = (
    "queue",
    "payload",
    "key",
    "priority",
    "delay",
    "due",
    "flow",
    "flowColumn",
    "action",
    "actionColumn",
    "headers",
    "correlationId",
    "traceparent",
    "retryOf",
    "socket",
    "runItems",
    "runBytes",
    "timeout",
    "compression",
    "txnAppId",
    "txnVersion",
)
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark hands on although it is not the sink's."""

RUN_ITEMS: Final = 2_500
"""More than other producers have: rows come in batches of thousands, and a run costs the daemon
the same whatever is in it. A quarter of Spark's own batch of 10,000 leaves no small rest."""

COMMIT_TIMEOUT_S: Final = 300.0
"""Publishing is tried for so long by default: a write that is staged is worth waiting for."""

TIMEOUT_S_MAX: Final = 7 * 86400.0
"""Longer is a mistake, and sockets do not take every number."""

_OWN_HEADERS: Final = {"correlation_id": "correlationid", "traceparent": "traceparent"}

METADATA: Final = "forebay"
"""Of the payload's column: options that `items` has put there. Those of the writer win."""

_DURATION_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_SIZE_UNITS: Final = {"": 1, "ki": 2**10, "mi": 2**20, "kb": 10**3, "mb": 10**6}
_SIZE = re.compile(r"(\d+)\s*(ki|mi|kb|mb|)b?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class OptionError(ValueError):
    """An option of a write, or a column that it names, is not what it must be."""

    def __init__(self, option: str, given: object, possible: str) -> None:
        super().__init__(f"forebay: option {option!r} is {given!r}: {possible}")
        self.option = option

    def __reduce__(self) -> tuple[Any, ...]:
        return _option_error, (str(self), self.option)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What was asked for; `priority` and `delay` may each be a value or a column's name."""

    queue: str
    payload: str | None
    key: str | None
    priority: str | None
    delay: str | None
    due: str | None
    flow: str
    flow_column: str | None
    action: str
    action_column: str | None
    headers: Mapping[str, str]
    retry_of: str | None
    socket: str | None
    run_items: int
    run_bytes: int
    timeout_s: float
    commit_timeout_s: float
    compressed: bool
    app: str | None
    version: int | None


def read_options(given: Mapping[str, str]) -> SinkOptions:
    """Reads the options of a write; names in any case, as Spark takes them."""
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, SINK_OPTIONS)
    app, version = _transaction(options)
    return SinkOptions(
        queue=_queue(options),
        payload=options.get("payload"),
        key=options.get("key"),
        priority=options.get("priority"),
        delay=options.get("delay"),
        due=options.get("due"),
        flow=_one_of_two(options, "flow", "flowColumn"),
        flow_column=options.get("flowcolumn"),
        action=_one_of_two(options, "action", "actionColumn"),
        action_column=options.get("actioncolumn"),
        headers=_headers(options),
        retry_of=options.get("retryof"),
        socket=options.get("socket"),
        run_items=_number(options, "runItems", RUN_ITEMS, 1, RUN_ITEMS_MAX),
        run_bytes=_size(options, "runBytes", RUN_RAW_BYTES_DEFAULT, 1, RUN_RAW_BYTES_MAX),
        timeout_s=read_timeout(options, TIMEOUT_S),
        commit_timeout_s=read_timeout(options, COMMIT_TIMEOUT_S),
        compressed=_compression(options),
        app=app,
        version=version,
    )


def check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuses an unknown name, and suggests the one that was probably meant."""
    by_lower = {name.lower(): name for name in known}
    for name in options:
        if name.lower() in by_lower or name.lower() in SPARKS_OWN:
            continue
        near = get_close_matches(name.lower(), by_lower, n=1)
        meant = f"there is no such option; did you mean {by_lower[near[0]]!r}?" if near else None
        raise OptionError(
            name, options[name], meant or f"there is no such option; there are {', '.join(known)}"
        )


def parse_duration(option: str, text: str) -> float:
    """Seconds, of `90`, `1.5`, `250ms`, `1h30m`."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise OptionError(option, text, "seconds, or a duration as 250ms, 30s, 5m or 1h30m")
    return sum(
        float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION_PART.findall(text)
    )


def read_timeout(options: Mapping[str, str], default_s: float) -> float:
    text = options.get("timeout")
    if text is None:
        return default_s
    seconds = parse_duration("timeout", text)
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise OptionError("timeout", text, "a duration above 0, and at most 7d")
    return seconds


def check_queue(client: Client, queue: str) -> None:
    """Raises OptionError if the queue does not exist and the daemon does not create it.

    It asks the driver's daemon only: the daemons on other hosts, which tasks may reach, can differ.
    """
    try:
        client.control("queues.show", queue=queue)
    except Refused as problem:
        if problem.code != "NOT_FOUND":
            raise
        listed = client.control("queues.ls")
        if listed["creates_queues"]:
            return
        there = ", ".join(at["queue"] for at in listed["queues"]) or "none"
        raise OptionError(
            "queue", queue, f"the daemon has no such queue and creates none; it has: {there}"
        ) from problem


def _queue(options: Mapping[str, str]) -> str:
    queue = options.get("queue")
    if not queue:
        raise OptionError("queue", queue, 'the queue to write to is needed: .option("queue", …)')
    try:
        check_queue_name(queue)
    except BadRun as problem:
        raise OptionError("queue", queue, str(problem)) from None
    return queue


def _headers(options: Mapping[str, str]) -> dict[str, str]:
    """Those that are given as such, and those that have an option of their own, which wins."""
    text = options.get("headers", "{}")
    own = {name: options.get(option) for name, option in _OWN_HEADERS.items()}
    what = 'a JSON object of texts, as {"source": "crm-feed"}'
    try:
        headers = loads(text)
    except ValueError:
        raise OptionError("headers", text, what) from None
    if not isinstance(headers, dict) or not all(isinstance(at, str) for at in headers.values()):
        raise OptionError("headers", text, what)
    if WRITE_HEADER in headers:
        raise OptionError("headers", text, f"{WRITE_HEADER!r} is forebay's own")
    headers |= {name: value for name, value in own.items() if value is not None}
    try:
        pack_headers(headers | {WRITE_HEADER: bytes(WRITE_ID_BYTES).hex()})
    except BadRun as problem:
        raise OptionError("headers", text, str(problem)) from None
    return headers


def _transaction(options: Mapping[str, str]) -> tuple[str | None, int | None]:
    app = options.get("txnappid")
    if (app is None) != ("txnversion" not in options):
        missing = "txnAppId" if app is None else "txnVersion"
        raise OptionError(missing, None, "txnAppId and txnVersion go together")
    if app is None:
        return None, None
    if not 0 < len(app.encode()) <= APP_BYTES_MAX:
        raise OptionError("txnAppId", app, f"a text of 1 to {APP_BYTES_MAX} bytes")
    return app, _number(options, "txnVersion", 0, 0, VERSION_MAX)


def _one_of_two(options: Mapping[str, str], text: str, column: str) -> str:
    if text in options and column.lower() in options:
        raise OptionError(text, options[text], f"give {text} or {column}, not both")
    return options.get(text, "")


def _compression(options: Mapping[str, str]) -> bool:
    given = options.get("compression", "snappy")
    if given.lower() not in ("snappy", "none"):
        raise OptionError("compression", given, "snappy or none")
    return given.lower() == "snappy"


def _number(options: Mapping[str, str], name: str, default: int, first: int, last: int) -> int:
    given = options.get(name.lower())
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or not first <= int(given) <= last:
        raise OptionError(name, given, f"a whole number, {first} to {last}")
    return int(given)


def _size(options: Mapping[str, str], name: str, default: int, first: int, last: int) -> int:
    given = options.get(name.lower())
    if given is None:
        return default
    match = _SIZE.fullmatch(given)
    size = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
    if not first <= size <= last:
        raise OptionError(name, given, f"bytes or a size as 512Ki or 1Mi, {first} to {last} bytes")
    return size


def _option_error(text: str, option: str) -> OptionError:
    error = OptionError.__new__(OptionError)
    ValueError.__init__(error, text)
    error.option = option
    return error
