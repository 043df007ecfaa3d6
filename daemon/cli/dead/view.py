"""Dead letters as people see them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from daemon.cli.client import ago

if TYPE_CHECKING:
    from rich.table import Table

COUNT_MAX: Final = 100_000
"""Counting stops here; more are shown as "over 100,000"."""
SHOWN_PAYLOAD_BYTES: Final = 4096


def how_many(count: int) -> str:
    return f"over {COUNT_MAX:,}" if count >= COUNT_MAX else f"{count:,}"


def letter_table(letters: Iterable[dict[str, Any]], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "queue", "flow", "action"):
        table.add_column(name, no_wrap=True, overflow="fold" if name == "id" else "ellipsis")
    table.add_column("tries", justify="right", no_wrap=True)
    table.add_column("died", justify="right", no_wrap=True)
    table.add_column("last error", no_wrap=True, overflow="ellipsis")
    for letter in letters:
        table.add_row(
            letter["id"],
            letter["queue"],
            escape(letter["flow"]),
            escape(letter["action"]),
            str(letter["attempt"]),
            ago(letter["died_ms"], at_ms),
            escape(last_error(letter)),
        )
    return table


def last_error(letter: dict[str, Any]) -> str:
    """On one line."""
    errors = letter.get("errors")
    return " ".join(errors[-1]["text"].split()) if errors else ""


def describe(letter: dict[str, Any], at_ms: int) -> str:
    """A dead letter with all its fields, as text for people."""
    lines = [f"{'id':<9} {letter['id']}", f"{'queue':<9} {letter['queue']}"]
    lines += [f"{name:<9} {letter[name]}" for name in ("flow", "action", "key") if letter.get(name)]
    lines.append(f"{'priority':<9} {letter['priority']}")
    lines += [f"{'header':<9} {name}: {value}" for name, value in letter["headers"].items()]
    for name in ("enqueued", "died"):
        then_ms = letter[f"{name}_ms"]
        lines.append(f"{name:<9} {moment(then_ms)}, {ago(then_ms, at_ms)} ago")
    lines.append(f"{'tries':<9} {letter['attempt']}")
    for error in letter["errors"]:
        reason = " (business)" if error.get("failure_reason") == "business" else ""
        lines.append(f"  {error['attempt']:>5}  {moment(error['at_ms'])}  {error['text']}{reason}")
    payload = letter.get("payload")
    if payload is None:
        lines += ["payload, in base64", letter.get("payload_b64", "")[:SHOWN_PAYLOAD_BYTES]]
    else:
        lines += ["payload", payload[:SHOWN_PAYLOAD_BYTES]]
        if len(payload) > SHOWN_PAYLOAD_BYTES:
            lines.append(f"… {len(payload):,} characters in total: see --raw")
    return "\n".join(lines)


def moment(at_ms: int) -> str:
    """In UTC, for comparison with the log."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
