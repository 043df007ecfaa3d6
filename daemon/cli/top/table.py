"""The table of queues in `forebay top`: draws rows, and keeps the cursor on its queue."""

from collections.abc import Sequence
from typing import Final, Literal

from rich.text import Text
from textual.widgets import DataTable

from daemon.cli.top.view import Column, QueueRow

DIM: Final = "dim"
RED: Final = "#ff5c7a"
"""A numbered colour: a named one would not turn grey when the daemon is unavailable."""
BAD: Final = f"bold {RED}"
HELD_UP: Final = "#e8b54d"


class QueueTable(DataTable[Text]):
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
