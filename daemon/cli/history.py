"""`forebay history`: lists finished items."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    Json,
    Reason,
    ago,
    now_ms,
    print_json,
    print_table,
)
from daemon.cli.dead.view import last_error
from daemon.cli.pull import item_object

if TYPE_CHECKING:
    from rich.table import Table

    from forebay.client import Client
    from forebay.fetch_frames import FetchedRow

EXAMPLE: Final = (
    "Examples: [bold]forebay history crm[/bold]; "
    "[bold]forebay history crm -n 1000 --json | jq -r .id[/bold]."
)


def history(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")],
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, help="Show at most N items.")
    ] = 20,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only items pushed with this id.")
    ] = None,
    traceparent: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only items with this traceparent or trace id."),
    ] = None,
    reason: Annotated[
        Reason | None,
        typer.Option(help="Only items whose last failure has this reason."),
    ] = None,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Show finished items, the latest first.

    The queue's [bold]history[/bold] setting says which items are kept: failures (the default: dead
    letters that were removed, and items delivered after a failure), all, or none. They are kept
    for its [bold]retention[/bold], 7 days by default.
    """
    from forebay.client import connect
    from forebay.limits import FETCH_ROWS_MAX

    with connect(socket, TIMEOUT_S) as client:
        wanted = _Wanted(correlation_id, traceparent, reason)
        rows = limit if wanted == NO_MATTER else FETCH_ROWS_MAX
        every = _finished(client, queue, min(rows, FETCH_ROWS_MAX))
        found = islice((entry for entry in every if wanted.has(entry)), limit)
        if as_json:
            for entry in found:
                print_json(entry)
            return
        shown = list(found)
        if not shown:
            client.control("queues.show", queue=queue)
    if not shown:
        typer.echo(f"the history of {queue} is empty", err=True)
        return
    print_table(_table(shown, now_ms()))


class _Wanted(NamedTuple):
    """The filters; None matches every item."""

    correlation_id: str | None
    traceparent: str | None
    reason: Reason | None

    def has(self, entry: dict[str, Any]) -> bool:
        from actors.model.correlation import correlation_of, is_of_trace

        headers, errors = entry["headers"], entry["errors"]
        if self.correlation_id is not None and correlation_of(headers) != self.correlation_id:
            return False
        if self.traceparent is not None and not is_of_trace(headers, self.traceparent):
            return False
        return self.reason is None or bool(errors and errors[-1]["failure_reason"] == self.reason)


NO_MATTER: Final = _Wanted(None, None, None)


def _finished(client: "Client", queue: str, rows: int) -> Iterator[dict[str, Any]]:
    """Items, the latest first, fetched `rows` rows at a time. A row has at least one item, so more
    rows than wanted items are never needed."""
    cursor: str | None = ""
    while cursor is not None:
        page = client.peek(queue, "history", cursor=cursor, rows=rows)
        for row in page.rows:
            yield from _items(row)
        cursor = page.cursor


def _items(row: "FetchedRow") -> Iterator[dict[str, Any]]:
    from forebay.lease_frames import LeasedRun
    from forebay.leases import unpack

    ended = row.finished
    if ended is None:
        return
    errors = [error._asdict() for error in ended.errors]
    for item in unpack(LeasedRun(0, 0, row.attempt, row.bits or 0, row.run)):
        yield {
            **item_object(item),
            "enqueued_ms": item.enqueued_ms,
            "outcome": ended.outcome,
            "finished_ms": ended.finished_ms,
            "locked_by": ended.locked_by or None,
            "locked_ms": ended.locked_ms or None,
            "result": ended.result or None,
            "job": ended.job or item.headers.get("job_id"),
            "errors": errors,
        }


def _table(shown: list[dict[str, Any]], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", no_wrap=True, overflow="fold")
    for name in ("flow", "action", "key", "outcome"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("tries", "finished"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True, overflow="ellipsis")
    table.add_column("last error", no_wrap=True, overflow="ellipsis")
    for entry in shown:
        table.add_row(
            entry["id"],
            escape(entry["flow"]),
            escape(entry["action"]),
            escape(entry["key"] or ""),
            entry["outcome"],
            str(entry["attempt"]),
            ago(entry["finished_ms"], at_ms),
            escape(entry["locked_by"] or ""),
            escape(last_error(entry)),
        )
    return table
