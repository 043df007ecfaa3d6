"""The overlays of `forebay top`: a question, the help, the details of a queue."""

from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from daemon.cli.dead.groups import Grouped
from daemon.cli.dead.view import moment
from daemon.cli.top.table import RED
from daemon.cli.top.view import QueueRow

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
