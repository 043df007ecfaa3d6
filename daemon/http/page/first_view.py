"""The page as it is first served: the table as it stands now, useful without JavaScript.

Pure: rows in, HTML out. At most `ROWS_MAX` rows are written, the longest: to write thousands would
hold up everything else of the daemon, and the page draws them all as soon as its modules run.
Everything is escaped by the template engine; names of flows and actions are the users'.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from daemon.http.page.words import age, count

ROWS_MAX: Final = 200
COLUMNS: Final = (
    ("flow", "Flow"),
    ("type", "Type"),
    ("action", "Action"),
    ("class", "Action Class"),
    ("warm", "Warm"),
    ("cold", "Cold"),
    ("total", "Total"),
    ("oldest", "Oldest"),
)
TASK_COLUMNS: Final = (
    ("item", "Item"),
    ("action", "Action"),
    ("items", "Items"),
    ("started", "Started"),
    ("duration", "Duration"),
    ("worker", "Worker"),
)
SHEETS: Final = ("palette.css", "frame.css", "queues.css", "narrow.css")
ITEM_SHEETS: Final = ("palette.css", "frame.css", "item.css")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the Action Queues table."""

    queue: str
    flow: str
    type: str
    action: str
    action_class: str
    warm: int
    cold: int
    oldest_age_ms: int | None

    @property
    def total(self) -> int:
        return self.warm + self.cold


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    label: str
    text: str = "–"
    note: str = ""
    tone: str = ""


class Views:
    """`static`: the address that the browser's files have."""

    def __init__(self, host: str, static: str) -> None:
        self._environment = Environment(
            loader=PackageLoader("daemon.http.page"), autoescape=True, undefined=StrictUndefined
        )
        self._environment.filters.update(age=age, count=count)
        self._environment.globals.update(host=host, static=static)

    def queue_metrics(self, rows: Sequence[Row] | None, now_ms: int) -> str:
        """Without rows: nobody has shown a token yet."""
        found = sorted(rows or (), key=lambda row: (-row.total, row.queue, row.flow))
        return self._environment.get_template("queue_metrics.html").render(
            sheets=SHEETS,
            clock=time.strftime("%H:%M:%S UTC", time.gmtime(now_ms / 1000)) if rows else "",
            columns=COLUMNS,
            task_columns=TASK_COLUMNS,
            figures=figures_of(found, is_open=rows is not None),
            rows=found[:ROWS_MAX],
            row_count=len(found),
            is_open=rows is not None,
        )

    def item(self, item_id: str) -> str:
        template = self._environment.get_template("item.html")
        return template.render(sheets=ITEM_SHEETS, clock="", item_id=item_id)


def figures_of(rows: Sequence[Row], *, is_open: bool) -> list[Figure]:
    """What the rows tell; the others come with the modules."""
    waiting = Figure("waiting", "Waiting")
    oldest = Figure("oldest", "Oldest")
    if is_open:
        warm, cold = sum(row.warm for row in rows), sum(row.cold for row in rows)
        note = f"{count(warm)} warm · {count(cold)} cold"
        waiting = Figure("waiting", "Waiting", count(warm + cold), note)
        ages = [row.oldest_age_ms for row in rows if row.oldest_age_ms is not None]
        note = "waiting the longest" if ages else "nothing is waiting"
        oldest = Figure("oldest", "Oldest", age(max(ages, default=None)), note)
    return [
        waiting,
        Figure("running", "Running"),
        Figure("in", "In"),
        Figure("out", "Out"),
        oldest,
        Figure("dead", "Dead letters"),
    ]
