"""The parts of the screen of `forebay top`.

QueueTable        the table of queues
ChosenPanel       the chosen queue, its last minutes, and why its items died
Sheet, Question   overlays: the help, the details of a queue, a question
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Label, Sparkline, Static

from daemon.cli.dead.groups import Grouped
from daemon.cli.dead.view import moment
from daemon.cli.top.view import (
    Column,
    QueueRow,
    backlog_text,
    count_text,
    rate_text,
    shorten,
    workers_text,
)

DIM: Final = "dim"
RED: Final = "#ff5c7a"
"""A numbered colour: a named one would not turn grey when the daemon is unavailable."""
BAD: Final = f"bold {RED}"
HELD_UP: Final = "#e8b54d"
POINTS: Final = 120
QUEUES_MAX: Final = 1000
"""At most this many queues have charts: the first ones seen."""
GROUPS_SHOWN: Final = 4
CHARTS: Final = (("in", "in/s"), ("out", "out/s"), ("held", "held"))
KEYS: Final = (
    ("↑ ↓", "choose a queue; Home, End, Page Up and Page Down as well"),
    ("Enter", "details: settings, counts, and dead letters by error"),
    ("p", "pause or resume it; while paused, pushes are accepted, nothing is delivered or leased"),
    ("r", "retry all of its dead letters (asks first)"),
    ("/", "filter by name, state, handler, destination or breaker; Esc ends it"),
    ("s", "sort by the next column; S reverses the order"),
    ("?", "this"),
    ("q", "quit"),
)
WORDS: Final = (
    ("held", "not finished: warm + cold + running + later + spooled"),
    ("warm, cold", "waiting: ready to be sent, or stored until there is room"),
    ("running", "leased by workers and consumers"),
    ("later", "not due yet: delayed, or waiting for a retry"),
    ("spooled", "in the journal, on its way to warm or cold"),
    ("dead", "dead letters: retry, edit or delete them with forebay dead"),
    ("workers", "busy and total; pull: consumers take the items"),
    ("new go", "where new items of the queue go now"),
)


class QueueTable(DataTable[Text]):
    """Draws rows, and keeps the cursor on its queue."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, id="queues")
        self._columns: list[Column] = []
        self._titles: list[str] = []
        self._names: list[str] = []

    @property
    def chosen(self) -> str | None:
        """The queue under the cursor."""
        row = self.cursor_row
        return self._names[row] if 0 <= row < len(self._names) else None

    def draw(
        self, rows: Sequence[QueueRow], columns: list[Column], sort: Column, *, is_upward: bool
    ) -> None:
        """Redraws what has changed: only cells, if the rows stay in place."""
        titles = [title_of(column, sort, is_upward) for column in columns]
        names = [row.name for row in rows]
        if titles == self._titles and names == self._names:
            self._change_cells(rows, columns)
            return
        keep, top = self.chosen, self.scroll_y
        # While rows are replaced, the row under the cursor was not chosen by the user.
        with self.app.batch_update(), self.prevent(DataTable.RowHighlighted):
            if titles != self._titles:
                self.clear(columns=True)
                for column, title in zip(columns, titles, strict=True):
                    self.add_column(Text(title, justify=justify(column)), key=column.key)
            else:
                self.clear()
            for row in rows:
                self.add_row(*(cell(row, column) for column in columns), key=row.name)
            self._columns, self._titles, self._names = list(columns), titles, names
            if keep in names:
                self.move_cursor(row=names.index(keep), scroll=False)
            self.scroll_to(y=top, animate=False)

    def _change_cells(self, rows: Sequence[QueueRow], columns: list[Column]) -> None:
        for row in rows:
            for column in columns:
                new = cell(row, column)
                if self.get_cell(row.name, column.key) != new:
                    self.update_cell(row.name, column.key, new, update_width=True)


def title_of(column: Column, sort: Column, is_upward: bool) -> str:
    if column.key != sort.key:
        return column.title
    is_rising = column.is_number is is_upward
    return f"{column.title} {'▲' if is_rising else '▼'}"


def justify(column: Column) -> Literal["left", "right"]:
    return "right" if column.is_number else "left"


def cell(row: QueueRow, column: Column) -> Text:
    text = column.text(row)
    return Text(text, style=style_of(row, column.key, text), justify=justify(column), no_wrap=True)


def style_of(row: QueueRow, key: str, text: str) -> str:
    """Highlights what an operator should see first; dims values without information."""
    if key == "dead" and row.dead:
        return BAD
    if key == "breaker" and row.is_in_trouble:
        return BAD
    if key == "state" and row.state != "running":
        return HELD_UP
    if key == "tier" and row.tier == "cold":
        return HELD_UP
    if text in ("0", "–", "…") or key in ("tier", "state") or (key == "breaker"):
        return DIM
    return ""


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


class Sheet(ModalScreen[bool]):
    """A text to read; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "app.pop_screen", "Close", show=False)
    ]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet") as box:
            box.border_title = self._title
            box.border_subtitle = "Esc"
            yield Static(self._text)


class Question(ModalScreen[bool]):
    """A yes-or-no question; only y means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q,enter", "answer(False)", "No"),
    ]

    def __init__(self, question: str, more: str) -> None:
        super().__init__()
        self._question = question
        self._more = more

    def compose(self) -> ComposeResult:
        text = Text(self._question, style="bold")
        if self._more:
            text.append(f"\n\n{self._more}", style="not bold")
        text.append("\n\ny", style="bold reverse")
        text.append(" yes    ", style="not bold")
        text.append("n", style="bold reverse")
        text.append(" no", style="not bold")
        with Vertical(id="question"):
            yield Static(text)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


def help_text() -> Text:
    text = Text()
    for key, what in KEYS:
        text.append(f"{key:>7}  ", style="bold")
        text.append(f"{what}\n")
    text.append("\n")
    for word, what in WORDS:
        text.append(f"{word:>10}  ", style="bold")
        text.append(f"{what}\n")
    text.append("\nRates are items per second over the last seconds. A dash means unknown.", "dim")
    return text


def details_text(
    row: QueueRow, queue: dict[str, Any], found: Grouped | None, books: dict[str, int]
) -> Text:
    """The details of one queue."""
    text = Text()

    def head(title: str) -> None:
        text.append(("\n\n" if text.plain else "") + title, style="bold underline")

    description = queue.get("settings", {}).get("description")
    if description:
        text.append(description)
    head("books")
    for name, count in books.items():
        if count:
            text.append(f"\n  {name:<12} {count:>16,}")
    if row.dead:
        head("dead letters, by last error")
        text.append("" if found else "\n  not read yet")
    for group in found.groups if found else ():
        text.append(f"\n{group.count:>9,}  ", style=RED)
        text.append(group.error)
        text.append(f"\n           as {group.example}, {moment(group.last_ms)}", style="dim")
    head("settings in force")
    text.append(f"\n{settings_text(queue)}")
    return text


def settings_text(queue: dict[str, Any]) -> str:
    import yaml

    settings = {
        name: value for name, value in queue.get("settings", {}).items() if name != "description"
    }
    lines = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).splitlines()
    return "\n".join(f"  {line}" for line in lines)
