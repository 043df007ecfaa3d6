"""The plan of a write: the use of each column, decided on the driver from options and schema.

A plan holds all that a task needs to know, and travels to the tasks in their writer. Only the tasks
see the values of a column: see batches.py and groups.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyspark.sql import types as t

from forebay.errors import BadRun
from forebay.head import short_text
from forebay.limits import (
    ACTION_BYTES_MAX,
    FLOW_BYTES_MAX,
    PRIORITY_NORMAL,
    TIME_MS_MAX,
)
from forebay.priorities import Labels, possible, read_number
from forebay.spark.options import METADATA, OptionError, SinkOptions, parse_duration, read_options

DELAY_S_MAX: Final = TIME_MS_MAX // 2000
"""So that a delay and the time of day together are a time still."""

TEXTS: Final = (t.StringType, t.BinaryType, t.VarcharType, t.CharType)
WHOLE: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
NUMBERS: Final = (*WHOLE, t.FloatType, t.DoubleType, t.DecimalType)


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """How a row becomes an item. If a column is None, the value beside it holds for all rows."""

    options: SinkOptions
    payload: str
    key: str | None
    item_id: str | None
    """Ids that items have already (`retryOf`)."""
    priority: int
    priority_column: str | None
    """Of numbers, or of texts: those are labels, or numbers that are written out."""
    priority_label: str | None
    """What holds for all rows, until the daemon was asked for its number."""
    priority_labels: Labels | None
    """What the labels in the column stand for: none until the daemon was asked. None: the column
    has numbers."""
    delay_s: float
    delay_column: str | None
    due_column: str | None
    flow_column: str | None
    action_column: str | None


def make_plan(given: Mapping[str, str], schema: t.StructType) -> SinkPlan:
    """Reads the options and finds the columns; OptionError for what cannot be."""
    options = read_options(_over(prepared(schema), {at.lower(): to for at, to in given.items()}))
    columns = Columns(schema)
    priority = _priority(options, columns)
    delay_s, delay_column = _delay(options, columns)
    due_column = columns.find("due", options.due, (t.TimestampType, *WHOLE))
    if due_column is not None and options.delay is not None:
        raise OptionError("delay", options.delay, "give delay or due, not both")
    for what, text, most in (
        ("flow", options.flow, FLOW_BYTES_MAX),
        ("action", options.action, ACTION_BYTES_MAX),
    ):
        try:
            short_text(what, text, most)
        except BadRun as problem:
            raise OptionError(what, text, str(problem)) from None
    return SinkPlan(
        options=options,
        payload=_payload(options, columns),
        key=columns.find("key", options.key, (*TEXTS, *WHOLE)),
        item_id=columns.find("retryOf", options.retry_of, (t.StringType,)),
        priority=priority.number,
        priority_column=priority.column,
        priority_label=priority.label,
        priority_labels=priority.labels,
        delay_s=delay_s,
        delay_column=delay_column,
        due_column=due_column,
        flow_column=columns.find("flowColumn", options.flow_column, TEXTS),
        action_column=columns.find("actionColumn", options.action_column, TEXTS),
    )


def needs_labels(plan: SinkPlan) -> bool:
    """Whether the daemon must be asked which labels there are."""
    return plan.priority_label is not None or plan.priority_labels is not None


def with_labels(plan: SinkPlan, labels: Labels) -> SinkPlan:
    """The plan with what the labels stand for; OptionError for one that there is not."""
    label = plan.priority_label
    if label is None:
        return replace(plan, priority_labels=dict(labels))
    if label not in labels:
        text = f"it is no column, and no priority: {possible(labels)}"
        raise OptionError("priority", label, text)
    return replace(plan, priority=labels[label], priority_label=None)


class Columns:
    """A schema's columns by name: exactly as written, or in another case if that is one column.
    Spark lets several have one name; none of those can be asked for."""

    def __init__(self, schema: t.StructType) -> None:
        self._fields = schema.fields
        self.names = ", ".join(schema.fieldNames()) or "none"

    def has(self, name: str) -> bool:
        return bool(self._named(name))

    def find(self, option: str, name: str | None, kinds: Sequence[type[t.DataType]]) -> str | None:
        """The name of a column of one of these types; None if none is asked for."""
        if name is None:
            return None
        named = self._named(name)
        if not named:
            raise OptionError(option, name, f"there is no such column; there are: {self.names}")
        if len(named) > 1:
            several = f"there are {len(named)} columns of this name: drop or rename the others"
            raise OptionError(option, name, several)
        field = named[0]
        if not isinstance(field.dataType, tuple(kinds)):
            possible = ", ".join(dict.fromkeys(kind.typeName() for kind in kinds))
            raise OptionError(
                option,
                name,
                f"the column is of type {field.dataType.simpleString()}, and must be one of "
                f"{possible}",
            )
        return field.name

    def of_texts(self) -> list[str]:
        return [at.name for at in self._fields if isinstance(at.dataType, TEXTS)]

    def _named(self, name: str) -> list[t.StructField]:
        exactly = [at for at in self._fields if at.name == name]
        alike = [at for at in self._fields if at.name.lower() == name.lower()]
        return exactly or (alike if len(alike) == 1 else [])


def prepared(schema: t.StructType) -> dict[str, str]:
    """The options that `items` has left in the schema."""
    for field in schema.fields:
        found: Any = (field.metadata or {}).get(METADATA)
        if isinstance(found, dict):
            return {str(name).lower(): str(value) for name, value in found.items()}
    return {}


def _over(prepared_: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What was given lies over what was prepared: over the same thing in another form as well."""
    gone = {
        other
        for pair in (("flow", "flowcolumn"), ("action", "actioncolumn"), ("delay", "due"))
        for name, other in (pair, pair[::-1])
        if name in given
    }
    return {name: to for name, to in prepared_.items() if name not in gone} | dict(given)


def _payload(options: SinkOptions, columns: Columns) -> str:
    """The column asked for, `payload`, `value`, or the only one that can be it."""
    name = options.payload
    if name is None:
        name = next((name for name in ("payload", "value") if columns.has(name)), None)
    if name is None:
        possible = columns.of_texts()
        if len(possible) != 1:
            raise OptionError(
                "payload",
                None,
                "name the column with the payloads, a string or binary one, or make one with "
                f"forebay.spark.items; the columns are: {columns.names}",
            )
        name = possible[0]
    found = columns.find("payload", name, TEXTS)
    assert found is not None
    return found


class _Priority(NamedTuple):
    number: int = PRIORITY_NORMAL
    column: str | None = None
    label: str | None = None
    labels: Labels | None = None


def _priority(options: SinkOptions, columns: Columns) -> _Priority:
    """A number, a column, or a label, in this order."""
    given = options.priority
    if given is None:
        return _Priority()
    number = read_number(given)
    if number is not None:
        return _Priority(number)
    if columns.has(given):
        column = columns.find("priority", given, (*WHOLE, *TEXTS))
        return _Priority(column=column, labels={} if column in columns.of_texts() else None)
    return _Priority(label=given)


def _delay(options: SinkOptions, columns: Columns) -> tuple[float, str | None]:
    """A duration, or a column of seconds."""
    given = options.delay
    if given is None:
        return 0.0, None
    if columns.has(given):
        return 0.0, columns.find("delay", given, NUMBERS)
    try:
        delay_s = parse_duration("delay", given)
    except OptionError:
        raise OptionError(
            "delay",
            given,
            f"seconds, a duration as 250ms, 30s or 1h30m, or one of the columns {columns.names}",
        ) from None
    if delay_s > DELAY_S_MAX:
        raise OptionError("delay", given, f"at most {DELAY_S_MAX} seconds")
    return delay_s, None
