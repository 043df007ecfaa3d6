"""The lower part of `forebay top`: the chosen queue, its last minutes, and why items died."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Label, Sparkline, Static

from daemon.cli.dead.groups import Grouped
from daemon.cli.top.table import RED
from daemon.cli.top.view import (
    QueueRow,
    backlog_text,
    count_text,
    rate_text,
    shorten,
    workers_text,
)

POINTS: Final = 120
QUEUES_MAX: Final = 1000
"""At most this many queues have charts: the first ones seen."""
GROUPS_SHOWN: Final = 4
CHARTS: Final = (("in", "in/s"), ("out", "out/s"), ("held", "held"))


class Charts:
    """The last minutes of every queue, one point per sample."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float, float]]] = {}

    def add(self, rows: Iterable[QueueRow]) -> None:
        for row in rows:
            if row.name not in self._points and len(self._points) >= QUEUES_MAX:
                continue
            points = self._points.setdefault(row.name, deque(maxlen=POINTS))
            points.append((row.in_s or 0.0, row.out_s or 0.0, float(row.held)))

    def of(self, queue: str) -> tuple[list[float], list[float], list[float]]:
        points = list(self._points.get(queue, ()))
        ins, outs, held = ([point[at] for point in points] for at in range(3))
        return ins, outs, held


class ChosenPanel(Vertical):
    def compose(self) -> ComposeResult:
        yield Static(id="about", markup=False)
        with Horizontal(id="charts"):
            for key, _ in CHARTS:
                with Vertical(classes="chart"):
                    yield Label("", id=f"{key}-label", markup=False)
                    yield Sparkline([], id=key)
        yield Static(id="groups", markup=False)

    def draw(self, row: QueueRow | None, charts: Charts, groups: Grouped | None) -> None:
        """`groups` is None until the dead letters were read."""
        self.border_title = row.name if row else "no queue"
        self.query_one("#about", Static).update(about_text(row) if row else "")
        values = charts.of(row.name) if row else ([], [], [])
        now = (row.in_s, row.out_s, row.held) if row else (None, None, None)
        for (key, title), points, last in zip(CHARTS, values, now, strict=True):
            shown = count_text(row.held) if key == "held" and row else rate_text(last)
            self.query_one(f"#{key}-label", Label).update(f"{title} {shown}")
            self.query_one(f"#{key}", Sparkline).data = points or [0.0]
        width = max(20, self.size.width - 4)
        self.query_one("#groups", Static).update(
            groups_text(row, groups, width) if row else Text("")
        )


def about_text(row: QueueRow) -> str:
    """The queue's state, handler and delivery."""
    words = [row.state, row.handler or "no handler"]
    if row.destination.startswith(f"{row.handler}:"):
        words[1] = row.destination
    elif row.destination and row.destination != row.handler:
        words[1] = f"{row.handler} to {row.destination}"
    words.append(f"workers {workers_text(row)}" if row.workers is not None else "")
    words.append(f"breaker {row.breaker.replace('_', ' ')}" if row.breaker else "")
    words.append(backlog_text(row))
    return "   ".join(word for word in words if word)


def groups_text(row: QueueRow, found: Grouped | None, width: int) -> Text:
    """Why its items died, the most frequent reason first."""
    if not row.dead:
        return Text("no dead letters", style="dim")
    text = Text().append(f"{count_text(row.dead)} dead letters", style="bold")
    if found is None:
        return text.append("  …", style="dim")
    groups = found.groups
    if not found.is_complete:
        text.append(f"  by error, of the {count_text(found.letters)} oldest", style="dim")
    for group in groups[:GROUPS_SHOWN]:
        text.append(f"\n{count_text(group.count):>9}  ", style=RED)
        text.append(shorten(group.error, width - 12))
    if len(groups) > GROUPS_SHOWN:
        text.append(f"\n           and {len(groups) - GROUPS_SHOWN} more kinds: Enter", style="dim")
    return text
