"""The Queue Metrics page as first served, and the files that a browser loads for it.

`Views` is pure: rows in, HTML out. The current table is useful without JavaScript. At most
`ROWS_MAX` rows are written, the longest: writing thousands would delay the rest of the daemon, and
the page draws all rows as soon as its modules run. The template engine escapes everything; names of
flows and actions come from users.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
NOTHING: Final = "–"
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
SCHEDULE_COLUMNS: Final = (
    ("name", "Name"),
    ("grid", "When"),
    ("queue", "Queue"),
    ("next", "Next ticks"),
    ("last", "Last"),
    ("missed", "If missed"),
    ("state", "State"),
    ("actions", ""),
)
TRIGGER_COLUMNS: Final = (
    ("name", "Name"),
    ("queue", "Polls"),
    ("batch", "Claims"),
    ("target", "Jobs go to"),
    ("jobs", "Jobs not done"),
    ("state", "State"),
    ("actions", ""),
)
EVENT_COLUMNS: Final = (
    ("number", "When"),
    ("kind", "Kind"),
    ("about", "About"),
    ("text", "What"),
)
SORTED_BY: Final = ("name", "queue", "next", "last", "target", "jobs", "number", "kind", "about")
"""Of a catalogue's columns, those that it can be sorted by."""
QUEUE_METRICS: Final = "/queue-metrics"
SCHEDULES: Final = f"{QUEUE_METRICS}/schedules"
TRIGGERS: Final = f"{QUEUE_METRICS}/triggers"
EVENTS: Final = f"{QUEUE_METRICS}/events"
VIEWS: Final = (
    (QUEUE_METRICS, "Queue Metrics"),
    (SCHEDULES, "Schedules"),
    (TRIGGERS, "Triggers"),
    (EVENTS, "Events"),
)
SHEETS: Final = ("palette.css", "frame.css", "tables.css", "queues.css", "narrow.css")
CATALOGUE_SHEETS: Final = ("palette.css", "frame.css", "tables.css", "catalogue.css")
ITEM_SHEETS: Final = ("palette.css", "frame.css", "item.css")


TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


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
        self._environment.globals.update(host=host, static=static, views=VIEWS)

    def queue_metrics(self, rows: Sequence[Row] | None, now_ms: int) -> str:
        """`rows` is None if a token is needed: the browser has not sent one yet."""
        found = sorted(rows or (), key=lambda row: (-row.total, row.queue, row.flow))
        return self._environment.get_template("queue_metrics.html").render(
            sheets=SHEETS,
            view=QUEUE_METRICS,
            clock=time.strftime("%H:%M:%S UTC", time.gmtime(now_ms / 1000)) if rows else "",
            columns=COLUMNS,
            task_columns=TASK_COLUMNS,
            figures=figures_of(found, is_open=rows is not None),
            rows=found[:ROWS_MAX],
            row_count=len(found),
            is_open=rows is not None,
        )

    def schedules(self) -> str:
        return self._catalogue("schedules.html", SCHEDULES, SCHEDULE_COLUMNS)

    def triggers(self) -> str:
        return self._catalogue("triggers.html", TRIGGERS, TRIGGER_COLUMNS)

    def events(self) -> str:
        return self._catalogue("events.html", EVENTS, EVENT_COLUMNS)

    def _catalogue(self, template: str, view: str, columns: Sequence[tuple[str, str]]) -> str:
        return self._environment.get_template(template).render(
            sheets=CATALOGUE_SHEETS, view=view, clock="", columns=columns, sorted_by=SORTED_BY
        )

    def item(self, item_id: str) -> str:
        template = self._environment.get_template("item.html")
        return template.render(sheets=ITEM_SHEETS, view="", clock="", item_id=item_id)


def figures_of(rows: Sequence[Row], *, is_open: bool) -> list[Figure]:
    """The figures that the rows give; the modules add the others."""
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


def count(number: int) -> str:
    """Like `count` in static/words.js; tests/browser/test_words.py compares both."""
    return f"{number:,}"


def age(ms: int | None) -> str:
    """`12 min`: one unit, rounded down. Like `age` in static/words.js."""
    if ms is None:
        return NOTHING
    if ms < MINUTE_MS:
        return f"{max(0, ms) // SECOND_MS} s"
    if ms < HOUR_MS:
        return f"{ms // MINUTE_MS} min"
    if ms < 2 * DAY_MS:
        return f"{ms // HOUR_MS} h"
    return f"{ms // DAY_MS:,} days"


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The files that a browser loads for the page: modules, styles and the logo, read once.

    They are served under the digest of all of them. A module imports the others by relative path,
    so a page and all that it loads always have the same version, and a browser may cache them
    forever. They are small and stay in memory: no request reads the disk.
    """

    digest: str
    by_name: Mapping[str, Asset]


def load_assets() -> Assets:
    found = {}
    digest = sha256()
    static = files("daemon.http.page") / "static"
    for file in sorted(static.iterdir(), key=lambda entry: entry.name):
        suffix = file.name.rpartition(".")[2]
        if suffix in TYPES:
            found[file.name] = Asset(file.read_bytes(), TYPES[suffix])
            digest.update(file.name.encode() + b"\0" + found[file.name].content)
    return Assets(digest.hexdigest()[:16], found)
