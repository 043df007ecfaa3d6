"""How people see the daemons of a fleet."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from daemon.cli.client import ago, counted, new_table, print_table

if TYPE_CHECKING:
    from rich.table import Table

NOW_MS: Final = 15_000
"""A daemon that was seen this recently is there now."""
ID_DIGITS: Final = 12


def show_fleet(answer: dict[str, Any]) -> None:
    print_table(_table(answer["daemons"], answer["now_ms"]))
    for daemon in answer["daemons"]:
        if daemon["state"] == "lost":
            typer.echo(f"forebay: {hint(daemon, answer['now_ms'])}", err=True)


def show_removed(gone: dict[str, Any]) -> None:
    typer.echo(f"{gone['daemon']} on {gone['host']} removed")
    if gone["backlog"]:
        typer.echo(
            f"forebay: its journal held {counted(gone['backlog'], 'item')} when it was last seen",
            err=True,
        )


def hint(daemon: dict[str, Any], now_ms: int) -> str:
    """What is known of a lost daemon, and what to do."""
    items, seen = daemon["backlog"], ago(daemon["seen_ms"], now_ms)
    held = f"{counted(items, 'item')} not handed over" if items else "everything handed over"
    return (
        f"{daemon['host']} ({daemon['daemon'][:ID_DIGITS]}) is lost: last seen {seen} ago with "
        f"{held}, last hand-over {_when(daemon['last_hand_over_ms'], now_ms)}; "
        "start a daemon on its state directory to drain it"
    )


def short_ids(daemons: list[dict[str, Any]]) -> dict[str, str]:
    """The first digits of each id: as many as tell all of them apart."""
    ids = [daemon["daemon"] for daemon in daemons]
    digits = ID_DIGITS
    while len({id_[:digits] for id_ in ids}) < len(ids):
        digits += 1
    return {id_: id_[:digits] for id_ in ids}


def _table(daemons: list[dict[str, Any]], now_ms: int) -> "Table":
    from rich.markup import escape

    names = ("daemon", "host", "version", "state", "up since", "last seen")
    figures = ("accepted/s", "delivered/s", "backlog")
    table = new_table(*names, *figures, "cannot reach", "last hand-over", right=figures)
    ids = short_ids(daemons)
    for daemon in daemons:
        is_up = daemon["state"] in ("running", "draining")
        table.add_row(
            ids[daemon["daemon"]],
            escape(daemon["host"]),
            escape(daemon["version"]),
            daemon["state"] + (" (this one)" if daemon["is_this"] else ""),
            _local(daemon["started_ms"]) if is_up else "-",
            _when(daemon["seen_ms"], now_ms),
            f"{daemon['accepted_per_s']:,.1f}" if is_up else "-",
            f"{daemon['delivered_per_s']:,.1f}" if is_up else "-",
            f"{daemon['backlog']:,}",
            escape(", ".join(daemon["unreachable"])) or "-",
            _when(daemon["last_hand_over_ms"], now_ms),
        )
    return table


def _when(at_ms: int | None, now_ms: int) -> str:
    if at_ms is None:
        return "never"
    return "now" if now_ms - at_ms < NOW_MS else f"{ago(at_ms, now_ms)} ago"


def _local(at_ms: int) -> str:
    """A time in this host's time zone."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M")
