"""`forebay items ls`: finds items in every state."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    Json,
    now_ms,
    parse_time,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from forebay.client import Client

PAGE: Final = 100
EXAMPLE: Final = "Example: [bold]forebay items ls --queue crm --state COLD_QUEUED[/bold]"


def ls(
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only this queue.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only in this state: SPOOLED, SCHEDULED, QUEUED, COLD_QUEUED (most of what is due "
            "later), RUNNING, DONE, FAILED or DELETED.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only with this key.")] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only with this correlation id.")
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only if the last error contains this text."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only items enqueued longer ago.")
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only items enqueued since then.")
    ] = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, help="List at most N.")
    ] = 50,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Find items in every state. All filters must match."""
    from daemon.cli.items.view import item_table
    from forebay.client import connect

    which: dict[str, Any] = {
        "queue": queue,
        "state": None if state is None else state.upper(),
        "key": key,
        "correlation_id": correlation_id,
        "error": error,
        "before_ms": _ago_ms(older_than, "--older-than"),
        "after_ms": _ago_ms(newer_than, "--newer-than"),
    }
    with connect(socket, TIMEOUT_S) as client:
        found = islice(_search(client, which), limit)
        if as_json:
            for item in found:
                print_json(item)
            return
        shown = list(found)
    if shown:
        print_table(item_table(shown, now_ms()))
    else:
        typer.echo("no items", err=True)


def _search(client: "Client", which: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = client.control("items.find", which=which, limit=PAGE, cursor=cursor)
        yield from page["items"]
        cursor = page["cursor"]
        if cursor is None:
            return


def _ago_ms(text: str | None, option: str) -> int | None:
    return None if text is None else now_ms() - round(parse_time(text, option) * 1000)
