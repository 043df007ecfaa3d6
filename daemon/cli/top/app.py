"""The screen of `forebay top`.

Textual runs on asyncio, in the main thread. The client blocks, so one thread samples the daemon
repeatedly (`_look`), and every action runs in another thread (`_act`); each thread has its own
connection. The screen therefore always responds to keys. Results come back as messages. On quit
the threads finish their current request, within its timeout.

If the daemon does not answer, the screen says so in red, greys out the last figures, and retries.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from daemon.cli.client import counted, open_control
from daemon.cli.dead.groups import Grouped
from daemon.cli.stats.sampling import Asker, Rates, Recent, Sample
from daemon.cli.top.view import (
    ROWS_MAX,
    Column,
    QueueRow,
    breakers_text,
    choose_columns,
    choose_rows,
    make_rows,
    shorten,
    spool_text,
    stores_away,
    stores_text,
    totals_text,
)
from daemon.cli.top.widgets import (
    BAD,
    HELD_UP,
    Charts,
    ChosenPanel,
    Question,
    QueueTable,
    Sheet,
    details_text,
    help_text,
)
from daemon.process.terminal import clean
from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay.control import Control

CSS: Final = """
#summary { height: 5; padding: 0 1; }
#head { height: 1; }
#totals { height: 1; text-style: bold; }
#spool, #breakers, #stores { height: 1; }
.-away #head { background: $error; color: $text; }
.-away #totals, .-away #spool, .-away #breakers, .-away #stores { opacity: 45%; }
.-away #queues, .-away #chosen { opacity: 45%; }

#queues {
    height: 1fr;
    background: $background;
    border: round $panel-lighten-2;
    border-title-color: $text-muted;
    border-subtitle-color: $text-warning;
    scrollbar-size-vertical: 1;
}
#queues:focus { border: round $primary; background-tint: $foreground 0%; }
#nothing { height: 1; padding: 0 2; color: $text-muted; }

#chosen {
    height: 11;
    border: round $panel-lighten-2;
    border-title-color: $text-accent;
    border-title-style: bold;
    padding: 0 1;
}
#about { height: 1; }
#charts { height: 3; }
.chart { width: 1fr; height: 3; padding: 0 2 0 0; }
.chart Label { color: $text-muted; height: 1; }
.chart Sparkline { height: 2; }
#in > .sparkline--max-color { color: $primary-lighten-2; }
#in > .sparkline--min-color { color: $primary; }
#out > .sparkline--max-color { color: $success; }
#out > .sparkline--min-color { color: $success-darken-2; }
#held > .sparkline--max-color { color: $warning; }
#held > .sparkline--min-color { color: $warning-darken-2; }
#groups { height: auto; max-height: 6; }
.-low #chosen { height: 8; }
.-low #charts { display: none; }

#filter { dock: bottom; height: 3; border: round $accent; }

Sheet, Question { align: center middle; }
#sheet {
    width: 90%; max-width: 100; height: auto; max-height: 90%;
    border: round $accent; background: $surface; padding: 1 2;
}
#question {
    width: 64; max-width: 94%; height: auto;
    border: round $warning; background: $surface; padding: 1 3;
}
"""

GROUPS_S: Final = 10.0
"""How often the errors of the chosen queue's dead letters are fetched; also when the number of
letters changes."""

LOW: Final = 30
"""A terminal with fewer lines has no room for charts."""
FRAME: Final = 4
"""The width of the table's border and scroll bar."""

Act = Callable[["Control"], str]
"""Performs an action and returns a sentence about the result."""


class Looked(Message):
    def __init__(self, sample: Sample, groups: tuple[str, Grouped] | None) -> None:
        super().__init__()
        self.sample = sample
        self.groups = groups
        """A queue and its dead letters by error, if they were read."""


class Away(Message):
    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


class TopApp(App[None]):
    CSS = CSS
    TITLE = "forebay top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause/resume"),
        Binding("r", "retry", "Retry dead"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("S", "turn", "Turn order", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("escape", "clear_filter", "Clear", show=False),
    ]

    def __init__(self, asker: Asker, interval_s: float, filter_text: str, sort: Column) -> None:
        super().__init__()
        self._asker = asker
        self._interval_s = interval_s
        self._filter_text = filter_text
        self._sort = sort
        self._is_upward = False
        self._recent = Recent()
        self._charts = Charts()
        self._rates: dict[str, Rates] = {}
        self._rows: list[QueueRow] = []
        self._groups: dict[str, Grouped] = {}
        self._again = threading.Event()
        self._wants_fresh = False
        self.sample: Sample | None = None
        self.away_since_s: float | None = None
        self.chosen_name: str | None = None
        """The queue under the cursor; read by the sampling thread."""

    # The screen.

    def compose(self) -> ComposeResult:
        with Vertical(id="summary"):
            yield Static(id="head", markup=False)
            yield Static(id="totals", markup=False)
            yield Static(id="spool", markup=False)
            yield Static(id="breakers", markup=False)
            yield Static(id="stores", markup=False)
        yield QueueTable()
        yield Static("no queues yet: forebay push QUEUE makes one", id="nothing", markup=False)
        yield ChosenPanel(id="chosen")
        yield Input(self._filter_text, placeholder="filter queues", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(QueueTable).focus()
        self._look()

    def on_unmount(self) -> None:
        self._again.set()

    # Sampling.

    @work(thread=True, group="look")
    def _look(self) -> None:
        worker = get_current_worker()
        read_s, read_of = 0.0, ("", -1)
        while not worker.is_cancelled:
            fresh, self._wants_fresh = self._wants_fresh, False
            groups = None
            try:
                sample = self._asker.sample(fresh=fresh)
                queue = self.chosen_name or ""
                dead = sample.books(queue).get("dead", 0) if queue else 0
                if queue and (read_of != (queue, dead) or sample.at_s - read_s > GROUPS_S):
                    groups = (queue, self._asker.dead_groups(queue))
                    read_s, read_of = sample.at_s, (queue, dead)
            except ForebayError as problem:
                self.post_message(Away(clean(str(problem))))
            else:
                self.post_message(Looked(sample, groups))
            self._again.wait(self._interval_s)
            self._again.clear()
        # Closed by the thread that uses it: another could close it while this one reopens it.
        self._asker.close()

    def on_looked(self, message: Looked) -> None:
        self.sample = message.sample
        self.away_since_s = None
        if message.groups is not None:
            queue, groups = message.groups
            self._groups = {queue: groups}
        self._recent.add(message.sample)
        self._rates = self._recent.rates()
        self._rows = make_rows(message.sample, self._rates)
        self._charts.add(self._rows)
        self._draw()

    def on_away(self, message: Away) -> None:
        if self.away_since_s is None:
            self.away_since_s = time.monotonic()
        self._recent.forget()
        self._draw(message.problem)

    # Drawing.

    def _draw(self, problem: str | None = None) -> None:
        # A message may arrive while the screen is being taken down: widgets may be gone.
        with suppress(NoMatches):
            if not self.screen_stack:
                return
            self.screen_stack[0].set_class(self.away_since_s is not None, "-away")
            self._draw_head(problem)
            if self.sample is not None:
                self._draw_summary(self.sample)
                self._draw_table()
                self._draw_chosen()

    def _draw_head(self, problem: str | None) -> None:
        text = Text("forebay", style="bold")
        text.append(f"  {self._asker.path}", style="dim")
        if self.sample is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(self.sample.at_ms / 1000))
            text.append(f"  {clock}", style="dim")
        if self._filter_text:
            text.append(f"  filter: {self._filter_text}", style=f"bold {HELD_UP}")
        if problem is not None and self.away_since_s is not None:
            for_s = round(time.monotonic() - self.away_since_s)
            since = counted(for_s, "second")
            why = problem.removeprefix("no daemon: ")
            text = Text(f"no daemon answers for {since}: {why}", style="bold")
        self._base("#head", Static).update(text)

    def _draw_summary(self, sample: Sample) -> None:
        width = max(20, self.size.width - 14)
        self._base("#totals", Static).update(totals_text(sample, self._rates))
        is_open = any(breaker["state"] != "closed" for breaker in sample.breakers)
        for name, words, is_bad in (
            ("spool", spool_text(sample, 16), False),
            ("breakers", breakers_text(sample), is_open),
            ("stores", stores_text(sample), bool(stores_away(sample))),
        ):
            text = Text(f"{name:<10}", style="dim")
            text.append(shorten(words, width), style=f"not dim {BAD}" if is_bad else "not dim")
            self._base(f"#{name}", Static).update(text)

    def _draw_table(self) -> None:
        rows = choose_rows(self._rows, self._filter_text, self._sort, is_upward=self._is_upward)
        table = self._base("#queues", QueueTable)
        columns = self._columns(rows)
        table.draw(rows[:ROWS_MAX], columns, self._sort, is_upward=self._is_upward)
        self.chosen_name = table.chosen
        left = len(rows) - ROWS_MAX
        table.border_subtitle = f"and {left:,} more: filter with /" if left > 0 else ""
        there = counted(len(self._rows), "queue")
        table.border_title = there if len(rows) == len(self._rows) else f"{len(rows):,} of {there}"
        nothing = self._base("#nothing", Static)
        nothing.display = not rows
        if self._rows:
            nothing.update(f"no queue matches {self._filter_text!r}: Esc shows all")

    def _columns(self, rows: Sequence[QueueRow]) -> list[Column]:
        return choose_columns(rows[:ROWS_MAX], self.size.width - FRAME)

    def _draw_chosen(self) -> None:
        row = self.chosen
        groups = self._groups.get(row.name) if row else None
        self._base("#chosen", ChosenPanel).draw(row, self._charts, groups)

    def _base(self, selector: str, kind: type[Any]) -> Any:
        """A widget of the main screen, even if another screen covers it."""
        return self.screen_stack[0].query_one(selector, kind)

    @property
    def chosen(self) -> QueueRow | None:
        name = self.chosen_name
        return next((row for row in self._rows if row.name == name), None)

    @on(DataTable.RowHighlighted)
    def _choose(self) -> None:
        self.chosen_name = self.query_one(QueueTable).chosen
        self._draw_chosen()
        self._again.set()

    def on_resize(self, event: Resize) -> None:
        self.screen_stack[0].set_class(event.size.height < LOW, "-low")
        if self.sample is not None:
            self._draw()

    # Keys.

    @on(DataTable.RowSelected)
    def _show_details(self) -> None:
        row = self.chosen
        if row is None or self.sample is None:
            return
        queue = dict(self.sample.queues.get(row.name, {}))
        books = dict(self.sample.books(row.name))
        text = details_text(row, queue, self._groups.get(row.name), books)
        self.push_screen(Sheet(row.name, text))

    def action_help(self) -> None:
        self.push_screen(Sheet("keys and words", help_text()))

    def action_pause(self) -> None:
        row = self.chosen
        if row is None or self.sample is None:
            return
        is_paused = self.sample.queues.get(row.name, {}).get("is_paused", False)
        self._act(partial(resume if is_paused else pause, row.name))

    def action_retry(self) -> None:
        row = self.chosen
        if row is None:
            return
        if not row.dead:
            self.notify(f"{row.name} has no dead letters")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act(partial(retry, row.name))

        question = f"Retry {counted(row.dead, 'dead letter')} of {row.name}?"
        more = "They are due at once, and their attempts are counted from 0 again."
        self.push_screen(Question(question, more), answered)

    @work(thread=True, group="act")
    def _act(self, act: Act) -> None:
        try:
            with open_control(self._asker.path) as control:
                said = act(control)
        except ForebayError as problem:
            self.call_from_thread(self.notify, clean(str(problem)), severity="error", markup=False)
        else:
            self.call_from_thread(self.notify, said, markup=False)
        self._wants_fresh = True
        self._again.set()

    def action_sort(self) -> None:
        shown = self._columns(self._rows)
        keys = [column.key for column in shown]
        at = keys.index(self._sort.key) + 1 if self._sort.key in keys else 0
        self._sort, self._is_upward = shown[at % len(shown)], False
        self._draw()

    def action_turn(self) -> None:
        self._is_upward = not self._is_upward
        self._draw()

    # The filter.

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    @on(Input.Changed, "#filter")
    def _filter(self, message: Input.Changed) -> None:
        self._filter_text = message.value
        self._draw()

    @on(Input.Submitted, "#filter")
    def _end_filter(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(QueueTable).focus()

    def action_clear_filter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._end_filter()


def pause(queue: str, control: "Control") -> str:
    control.pause(queue)
    return f"{queue} paused"


def resume(queue: str, control: "Control") -> str:
    control.resume(queue)
    return f"{queue} resumed"


def retry(queue: str, control: "Control") -> str:
    done = control.dead_retry({"queue": queue})
    return f"{counted(done, 'dead letter')} of {queue} retried"
