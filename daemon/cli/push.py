"""`forebay push`: pushes items from a file or a pipe into a queue, in constant memory."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from daemon.cli.client import DaemonSocket, counted, read_headers, read_priority, resolve_priority

if TYPE_CHECKING:
    from forebay.client import Client
    from forebay.pusher import Pusher
    from forebay.tally import OutcomeCounts, PushResult

LINGER_MS: Final = 200
"""How long items from a slow pipe wait for more before they are pushed."""

EXAMPLE: Final = (
    "Examples: [bold]forebay push crm customers.ndjson --key-field id[/bold]; "
    "[bold]tail -F app.log | forebay push logs[/bold] pushes lines as they come; "
    "[bold]forebay push scans image.tiff --split whole --priority high --delay 10m[/bold]."
)

Advance = Callable[[int, int], None]
"""Called with the bytes read and the items acknowledged so far."""


Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue to push to.")]
File = Annotated[str, typer.Argument(metavar="FILE|-", help="What to push; - is standard input.")]
Split = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Where items end: [bold]lines[/bold] (at a line feed), [bold]null[/bold] (at a "
        "zero byte), [bold]whole[/bold] (the input is one item), or a size like "
        "[bold]4096[/bold] or [bold]64Ki[/bold] (items of that many bytes). "
        "Empty lines are skipped.",
    ),
]
Priority = Annotated[
    str,
    typer.Option(
        metavar="N|LABEL",
        help="0 (most urgent) to 255, or a label of the daemon's configuration: "
        "[bold]high[/bold] (0), [bold]normal[/bold] (5) and [bold]low[/bold] (10) unless "
        "[bold]priorities[/bold] says otherwise.",
    ),
]
Delay = Annotated[
    str | None, typer.Option(metavar="TIME", help="Deliver after this delay, e.g. 90s.")
]
Key = Annotated[
    str | None, typer.Option(metavar="KEY", help="The key of every item, at most 200 bytes.")
]
KeyField = Annotated[
    str | None, typer.Option(metavar="NAME", help="The member of JSON items that holds the key.")
]
Flow = Annotated[str, typer.Option(metavar="NAME", help="The flow that items belong to.")]
Action = Annotated[str, typer.Option(metavar="NAME", help="The action of the items.")]
Header = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A header of every item; may be repeated."),
]
CorrelationId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Correlation id of this push: it appears in logs, deliveries and history, and can "
        "be searched for.",
    ),
]
Traceparent = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The same, as a W3C Trace Context traceparent.")
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Give up if nothing is acknowledged for this long. \\[default: 60s]"
    ),
]
NoCompress = Annotated[bool, typer.Option("--no-compress", help="Do not compress with Snappy.")]

KeysOf = Callable[[list[bytes]], Iterable[bytes | None]]
"""Returns the keys of some items."""


def push(
    queue: Queue,
    file: File = "-",
    split: Split = "lines",
    priority: Priority = "5",
    delay: Delay = None,
    key: Key = None,
    key_field: KeyField = None,
    flow: Flow = "",
    action: Action = "",
    header: Header = None,
    correlation_id: CorrelationId = None,
    traceparent: Traceparent = None,
    socket: DaemonSocket = None,
    timeout: Timeout = None,
    no_compress: NoCompress = False,
) -> None:
    """Push items to a queue. Returns when all of them are acknowledged.

    An acknowledged item is on disk. If the push fails midway, earlier items are stored: pushing
    the same file again pushes them twice.

    For a queue with unique keys, prints how many items were created, updated, ignored, or in
    conflict; the last two are not stored.
    """
    how = _parse_split(split)
    keys_of = _make_keys(key, key_field)
    options: dict[str, Any] = {
        "priority": read_priority(priority),
        "delay": _parse_duration(delay, "--delay"),
        "flow": flow,
        "action": action,
        "headers": _correlated(read_headers(header or []), correlation_id, traceparent),
        "compressed": not no_compress,
    }

    import time

    from forebay.client import TIMEOUT_S, connect

    timeout_s = TIMEOUT_S if timeout is None else _parse_duration(timeout, "--timeout")
    started = time.monotonic()
    with _open(file) as source, connect(socket, timeout_s) as client, _progress(source) as advance:
        options["priority"] = resolve_priority(client, options["priority"])
        pusher = client.pusher(queue, **options)
        with _telling_what_is_stored(pusher), pusher:
            _push_all(source, how, keys_of, client, pusher, advance)
    typer.echo(_summary(queue, pusher.result, pusher.outcomes, time.monotonic() - started))


def _push_all(
    source: BinaryIO,
    how: str | int,
    keys_of: KeysOf | None,
    client: "Client",
    pusher: "Pusher",
    advance: Advance,
) -> None:
    """Reads as fast as the daemon acknowledges. If the input is slow, pushes what it has."""
    from select import POLLIN, poll

    from daemon.cli.lines import split

    poller = poll()
    poller.register(source, POLLIN)
    bytes_read = 0

    def read(size: int) -> bytes:
        nonlocal bytes_read
        if not poller.poll(LINGER_MS):
            pusher.flush()
            client.drain()
            advance(bytes_read, pusher.result.items)
        data = source.read(size)
        bytes_read += len(data)
        return data

    for items in split(read, how):
        pusher.send_all(items, keys_of(items) if keys_of else None)
        advance(bytes_read, pusher.result.items)


@contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    # Unbuffered, so that read and poll see the same available input.
    if file == "-":
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as source:
            yield source
    else:
        with Path(file).open("rb", buffering=0) as source:
            yield source


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Advance]:
    """A progress bar on a terminal, nothing elsewhere. A pipe has no known end."""
    if not sys.stderr.isatty():
        yield lambda bytes_read, items: None
        return

    import os
    import stat

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    found = os.fstat(source.fileno())
    total = found.st_size if stat.S_ISREG(found.st_mode) else None
    columns = [
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[items]:,} items acknowledged"),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("push", total=total, items=0)
        yield lambda bytes_read, items: progress.update(task, completed=bytes_read, items=items)


def _parse_split(text: str) -> str | int:
    if text in ("lines", "null", "whole"):
        return text

    from actors.model.units import parse_size

    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if size < 1:
        raise typer.BadParameter(f"--split is lines, null, whole or a size, not {text!r}")
    return size


def _parse_duration(text: str | None, option: str) -> float:
    if text is None:
        return 0.0

    from actors.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _correlated(
    headers: dict[str, str], correlation_id: str | None, traceparent: str | None
) -> dict[str, str]:
    given = {"correlation_id": correlation_id, "traceparent": traceparent}
    for name, value in given.items():
        if value is not None and headers.setdefault(name, value) != value:
            raise typer.BadParameter(f"--header {name}=… says something else")
    return headers


def _make_keys(key: str | None, field: str | None) -> KeysOf | None:
    """None if the items have no keys."""
    if key is not None and field is not None:
        raise typer.BadParameter("give --key or --key-field, not both")
    if key is not None:
        fixed = key.encode()
        return lambda items: [fixed] * len(items)
    if field is not None:
        return lambda items: (_key_in(item, field) for item in items)
    return None


def _key_in(item: bytes, field: str) -> bytes:
    from forebay.errors import BadRun
    from forebay.strict_json import loads

    try:
        value = loads(item)[field]
    except (ValueError, TypeError, KeyError):
        value = None
    if isinstance(value, bool) or not isinstance(value, str | int):
        shown = item[:60].decode(errors="replace")
        raise BadRun(f"--key-field: no text or whole number {field!r} in {shown!r}")
    return str(value).encode()


@contextmanager
def _telling_what_is_stored(pusher: "Pusher") -> Iterator[None]:
    """Adds the number of items that are stored to an error."""
    from forebay.errors import ForebayError, Refused

    try:
        yield
    except ForebayError as error:
        if not pusher.result.items:
            raise
        stored = f"{counted(pusher.result.items, 'item')} stored before that"
        if isinstance(error, Refused):
            raise Refused(error.code, f"{error.text}; {stored}", fatal=error.fatal) from error
        raise type(error)(f"{error}; {stored}") from error


def _summary(queue: str, result: "PushResult", outcomes: "OutcomeCounts", seconds: float) -> str:
    items, runs = counted(result.items, "item"), counted(result.runs, "run")
    again = f", {result.duplicates:,} of them stored before" if result.duplicates else ""
    counts = outcomes._asdict().items()
    decided = ", ".join(f"{count:,} {outcome}" for outcome, count in counts if count)
    return f"{queue}: {items} in {runs}{again}, acknowledged in {seconds:.2f} s" + (
        f": {decided}" if decided else ""
    )
