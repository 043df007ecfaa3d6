"""Formats single items for people and programs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from daemon.cli.client import ago
from daemon.cli.dead.view import SHOWN_PAYLOAD_BYTES, moment
from daemon.cli.pull import item_object

if TYPE_CHECKING:
    from rich.table import Table

    from forebay.delayed import Polled

_NAMED: Final = ("queue", "state", "flow", "action", "key", "priority")


def polled_object(polled: "Polled") -> dict[str, Any]:
    """The object that `poll` prints: the item, its lock, and the fields that show a redelivery."""
    return {
        **item_object(polled.item),
        "lock": str(polled.lock),
        "until_ms": polled.until_ms,
        "scheduled_at_ms": polled.scheduled_at_ms,
        "scheduled_at_initially_ms": polled.scheduled_at_initially_ms,
        "is_redelivery": polled.is_redelivery,
    }


def item_table(items: Iterable[dict[str, Any]], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", no_wrap=True, overflow="fold")
    for name in ("queue", "state", "key"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("tries", "enqueued", "due"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last error", no_wrap=True, overflow="ellipsis")
    for item in items:
        table.add_row(
            item["id"],
            item["queue"],
            item["state"],
            escape(item["key"] or ""),
            str(item["attempt"]),
            ago(item["enqueued_ms"], at_ms),
            when(item["due_ms"], at_ms),
            escape(" ".join((item["last_error"] or "").split())),
        )
    return table


def when(due_ms: int | None, at_ms: int) -> str:
    """`in 5m`; empty if it is due."""
    if due_ms is None or due_ms <= at_ms:
        return ""
    return f"in {ago(at_ms, due_ms)}"


def describe_item(item: dict[str, Any], at_ms: int) -> str:
    """An item with all its fields, as text for people."""
    lines = [f"{'id':<9} {item['id']}"]
    lines += [f"{name:<9} {item[name]}" for name in _NAMED if item.get(name) not in (None, "")]
    lines += [f"{'header':<9} {name}: {value}" for name, value in item["headers"].items()]
    lines.append(f"{'enqueued':<9} {moment(item['enqueued_ms'])}")
    lines.append(f"{'due':<9} {moment(item['scheduled_at_ms'])}")
    if item["scheduled_at_ms"] > item["scheduled_at_initially_ms"]:
        lines[-1] += f", at first {moment(item['scheduled_at_initially_ms'])}"
    lines.append(f"{'tries':<9} {item['attempt']}")
    for error in item["errors"]:
        lines.append(f"  {error['attempt']:>5}  {moment(error['at_ms'])}  {error['text']}")
    return "\n".join([*lines, *_payload_lines(item)])


def _payload_lines(item: dict[str, Any]) -> list[str]:
    if item.get("payload_problem"):
        return [f"payload   {item['payload_problem']}"]
    payload = item.get("payload")
    if payload is None:
        return ["payload, in base64", item.get("payload_b64", "")[:SHOWN_PAYLOAD_BYTES]]
    lines = ["payload", payload[:SHOWN_PAYLOAD_BYTES]]
    if len(payload) > SHOWN_PAYLOAD_BYTES:
        lines.append(f"… {len(payload):,} characters in total: see --json")
    return lines
