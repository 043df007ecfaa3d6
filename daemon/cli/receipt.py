"""`forebay receipt`: shows the outcome of a write's items; waits until none is pending."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    ago,
    counted,
    now_ms,
    parse_time,
    print_json,
    print_table,
    show_progress,
)
from daemon.cli.dead.view import moment
from daemon.cli.exits import Exit

if TYPE_CHECKING:
    from rich.table import Table

    from forebay.client import Client
    from forebay.receipts import Receipt

EXAMPLE: Final = (
    "Examples: [bold]forebay receipt 0198c0de0a0070008000000000000001[/bold]; "
    "[bold]forebay receipt ID --wait --timeout 10m && ./publish_report.sh[/bold]; "
    "[bold]forebay receipt ID --json | jq .pending[/bold]."
)
ALWAYS: Final = ("accepted", "delivered", "dead", "pending")
SELDOM: Final = ("dropped", "deleted", "lost")


def receipt(
    write: Annotated[
        str, typer.Argument(metavar="ID", help="The write's id, with dashes or without.")
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no item is pending.")] = False,
    timeout: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long --wait waits, e.g. 90s or 2h; 0: no limit."),
    ] = "60s",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    socket: DaemonSocket = None,
) -> None:
    """Show how many items of a write were delivered, and how many were not.

    Every published write has a receipt; a Spark driver prints its id. Counts are items, and
    accepted = delivered + dead + dropped + deleted + lost + pending. Dead items are listed by
    [bold]forebay dead ls[/bold]; when they are retried, they are pending again. The daemon keeps a
    receipt for spool.receipt_ttl, 7 days by default.

    Exit code 0: no item is pending or dead. 1: some items are pending or dead. 5: there is no such
    receipt, or it has expired.
    """
    from forebay.client import connect
    from forebay.writes import write_id

    try:
        chosen = write_id(write)
    except ValueError as error:
        raise typer.BadParameter(f"{write!r} is not a valid write id: use 32 hex digits") from error
    wait_s = parse_time(timeout, "--timeout")
    with connect(socket, TIMEOUT_S) as client:
        shown = client.receipt(chosen)
        if wait and shown.pending:
            shown = _wait(client, shown, wait_s or None)
    if as_json:
        print_json(shown.as_dict())
    else:
        print_table(_table(shown))
    if wait and shown.pending:
        pending = counted(shown.pending, "item")
        typer.echo(f"forebay: still pending after {timeout}: {pending}", err=True)
    if shown.pending or shown.dead:
        raise typer.Exit(Exit.FAILURE)


def _wait(client: "Client", first: "Receipt", timeout: float | None) -> "Receipt":
    """The last receipt seen, even after a timeout."""
    from forebay.receipts import StillPending

    with show_progress("settled", first.accepted) as show:
        try:
            return client.wait_receipt(
                first.write,
                timeout=timeout,
                progress=lambda seen: show(seen.accepted - seen.pending),
            )
        except StillPending as late:
            return late.receipt


def _table(receipt: "Receipt") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    published = f"{moment(receipt.published_ms)}, {ago(receipt.published_ms, now_ms())} ago"
    table.add_row("write", receipt.write.hex())
    table.add_row("published", published)
    if receipt.app is not None:
        table.add_row("transaction", f"{escape(receipt.app)}, version {receipt.version}")
    table.add_row("queues", ", ".join(receipt.queues))
    for name in (*ALWAYS, *SELDOM):
        count: int = getattr(receipt, name)
        if count or name in ALWAYS:
            table.add_row(name, f"{count:,}")
    return table
