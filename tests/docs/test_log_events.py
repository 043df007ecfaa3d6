"""The log events of docs/operations.md are those of the code: operators alert on them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
SEEN = {"info", "warning", "error", "exception", "critical"}


def test_every_event_that_an_operator_sees_is_documented() -> None:
    missing = logged() - documented()
    assert not missing, f"add to 'Log events' of docs/operations.md: {sorted(missing)}"


def test_every_event_that_is_documented_exists() -> None:
    unknown = documented() - {text for tree in sources() for text in texts(tree)}
    assert not unknown, f"remove from 'Log events' of docs/operations.md: {sorted(unknown)}"


def documented() -> set[str]:
    text = (ROOT / "docs" / "operations.md").read_text()
    table = text.split("## Log events", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {event for row in rows for event in re.findall(r"`([^`]+)`", row)}


def logged() -> set[str]:
    """Events that are given to a log call where it stands, or by a choice of two."""
    found: set[str] = set()
    for node in (node for tree in sources() for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and node.args and is_seen(node.func):
            found |= {text for text in texts(node.args[0]) if EVENT.fullmatch(text)}
    assert len(found) > 50
    return found


def is_seen(function: ast.expr) -> bool:
    """`log.info(…)`, or `(log.warning if … else log.info)(…)`."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in SEEN
        and isinstance(node.value, ast.Name)
        and node.value.id == "log"
        for node in ast.walk(function)
    )


def texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def sources() -> list[ast.Module]:
    folders = [ROOT / folder for folder in ("actors", "daemon")]
    return [ast.parse(path.read_text()) for folder in folders for path in folder.rglob("*.py")]
