"""What `forebay top` lays over its screen: a question, the keys, all about one queue."""

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
    ("Enter", "all about it: its settings, its books, its dead letters by error"),
    ("p", "pause it, or resume it: pushes are taken, nothing is delivered or leased"),
    ("r", "retry all of its dead letters (you are asked first)"),
    ("/", "filter by name, state, handler, destination or breaker; Esc ends it"),
    ("s", "sort by the next column; S turns the order round"),
    ("?", "this"),
    ("q", "quit"),
)
WORDS: Final = (
    ("held", "waits or is being worked on: warm + cold + running + later + spooled"),
    ("warm, cold", "where it waits: ready to be sent, or stored until there is room"),
    ("running", "in the hands of workers and consumers"),
    ("later", "not due yet: delayed, or to be tried again"),
    ("spooled", "in the journal, on its way to warm or cold"),
    ("dead", "given up, and kept: retry, edit or delete with forebay dead"),
    ("workers", "busy of all; pull: consumers take the items themselves"),
    ("new go", "where new items of the queue go now"),
)


class Sheet(ModalScreen[bool]):
    """Something to read, that any of the usual keys puts away."""

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
    """Yes or no. No is what everything but a clear yes means."""

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
    text.append("\nRates are of the last seconds, in items. A dash is what is not known.", "dim")
    return text


def details_text(
    row: QueueRow, queue: dict[str, Any], found: Grouped | None, books: dict[str, int]
) -> Text:
    """All about one queue."""
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
