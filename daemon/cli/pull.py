"""`forebay pull`: items out of a queue, onto standard output."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import TIMEOUT_S, DaemonSocket, parse_time
from daemon.process.terminal import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.client import Client
    from forebay.item import Item
    from forebay.leases import Lease

WAIT: Final = "10s"
FOLLOW_S: Final = 3600.0
"""So long it waits at a time; then it waits again."""
EXAMPLE: Final = (
    "Examples: [bold]forebay pull crm -n 5 --no-ack[/bold] looks at five items and leaves them "
    "there; [bold]forebay pull crm --follow | ./work.sh[/bold] takes items as they come."
)


class Format(StrEnum):
    ndjson = "ndjson"
    raw = "raw"


def pull(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue to take from.")],
    count: Annotated[
        int,
        typer.Option(
            "-n", "--count", metavar="N", min=1, help="At most so many items; see --follow."
        ),
    ] = 10,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long to wait for the first item, and for the queue if it does not exist yet. "
            "\\[default: 10s, and the queue must exist]",
            show_default=False,
        ),
    ] = None,
    lease: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long the items are ours: printing must not take longer; "
            "0: as the queue says.",
        ),
    ] = "60s",
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            help="Acknowledge what was printed. Otherwise it is given back when the command ends.",
        ),
    ] = True,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on for ever, so many items at a time.")
    ] = False,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="[bold]ndjson[/bold]: a JSON object a line, with all there is to know; "
            "[bold]raw[/bold]: the payload and a line feed.",
        ),
    ] = Format.ndjson,
    socket: DaemonSocket = None,
) -> None:
    """Take items from a queue and print them.

    An item is acknowledged once standard output has taken it, and is gone from the queue then. If
    writing fails, or the command is interrupted before, it is given back and comes again.
    """
    must_exist, wait = wait is None and not follow, wait or WAIT
    wait_s, lease_s = parse_time(wait, "--wait"), parse_time(lease, "--lease")

    from forebay.client import connect

    printed = 0
    with connect(socket, TIMEOUT_S) as client:
        if must_exist:
            client.control("queue.show", queue=queue)
        while follow or printed < count:
            leased = _lease(client, queue, count, printed, lease_s, wait_s, follow)
            if not leased and not follow:
                break
            _print(leased, form, ack)
            printed += len(leased)
    if not printed and sys.stderr.isatty():
        typer.echo(f"nothing was due in {queue} within {wait}", err=True)


def _lease(
    client: "Client",
    queue: str,
    count: int,
    printed: int,
    lease_s: float,
    wait_s: float,
    follow: bool,
) -> "Lease":
    """The first is waited for; what comes after it is taken as far as it is there."""
    from forebay.limits import LEASE_ITEMS_MAX

    items, wait_s = (count, FOLLOW_S) if follow else (count - printed, 0.0 if printed else wait_s)
    items = min(items, LEASE_ITEMS_MAX)
    return client.lease(queue, items, lease_s=lease_s, wait_s=wait_s, consumer="forebay pull")


def _print(leased: "Lease", form: Format, ack: bool) -> None:
    if not ack:
        _write(leased, form)
        return
    with leased:
        _write(leased, form)


def _write(items: "Iterable[Item]", form: Format) -> None:
    """Returns when standard output has taken all of it."""
    lines = (
        item.payload + b"\n" if form is Format.raw else item_line(item_object(item))
        for item in items
    )
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()


def item_object(item: "Item") -> dict[str, Any]:
    """The object that files and NDJSON bodies have for an item."""
    shown: dict[str, Any] = {
        "id": item.id,
        "queue": item.queue,
        "key": item.key,
        "attempt": item.attempt,
        "priority": item.priority,
        "flow": item.flow,
        "action": item.action,
        "headers": dict(item.headers),
    }
    try:
        shown["payload"] = item.payload.decode()
    except UnicodeDecodeError:
        import base64

        shown["payload_b64"] = base64.b64encode(item.payload).decode()
    return shown


def item_line(shown: dict[str, Any]) -> bytes:
    return json_text(shown, separators=(",", ":")).encode() + b"\n"
