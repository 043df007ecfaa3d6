"""Groups the rows of an Arrow batch that may share a run: same priority, due time, flow, action.

Arrow does the work: it encodes columns as dictionaries, combines their codes into one and sorts the
rows by it. Python takes one step per group and none per row. The sort is stable, and groups come in
the order in which they first appear. A batch whose rows are in groups already is not moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.limits import ACTION_BYTES_MAX, FLOW_BYTES_MAX, PRIORITY_MAX, TIME_MS_MAX
from forebay.priorities import Labels, possible, read_number
from forebay.spark.plan import DELAY_S_MAX, SinkPlan


class RowError(ValueError):
    """Rows have values that no item can have."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the items of a run have in common."""

    priority: int
    due_ms: int
    flow: str
    action: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rows `first` to `last` (exclusive), once they are in order."""

    first: int
    last: int
    shared: Shared


@dataclass(frozen=True, slots=True)
class Grouped:
    groups: list[Group]
    order: Any
    """Which row comes where, an Arrow array; None: as they are."""


def group_rows(batch: Any, plan: SinkPlan, now_ms: int) -> Grouped:
    """The groups of a batch with at least one row; RowError for values that cannot be."""
    due_ms = now_ms + round(plan.delay_s * 1000) if plan.delay_s else 0
    values: dict[str, Any] = {
        "priority": plan.priority,
        "due_ms": due_ms,
        "flow": plan.options.flow,
        "action": plan.options.action,
    }
    various = []
    for name, column in _columns(batch, plan, now_ms):
        encoded = column.dictionary_encode()
        values[name] = encoded.dictionary[0].as_py()
        if len(encoded.dictionary) > 1:
            various.append((name, encoded))
    rows = batch.num_rows
    if not various:
        return Grouped([Group(0, rows, Shared(**values))], None)

    codes = various[0][1].indices
    for _, encoded in various[1:]:
        # Encoded anew each time: products of many columns' codes would outgrow 64 bits.
        wide = pc.multiply(codes.cast(pa.int64()), len(encoded.dictionary))
        codes = pc.add(wide, encoded.indices.cast(pa.int64())).dictionary_encode().indices
    stretches = pc.run_end_encode(codes)
    order = None
    if len(stretches.values) > pc.max(codes).as_py() + 1:
        order = pc.sort_indices(codes)
        stretches = pc.run_end_encode(codes.take(order))
    groups = []
    first = 0
    for last in stretches.run_ends.to_pylist():
        row = first if order is None else order[first].as_py()
        own = {name: encoded[row].as_py() for name, encoded in various}
        groups.append(Group(first, last, Shared(**(values | own))))
        first = last
    return Grouped(groups, order)


def as_texts(name: str, column: Any) -> Any:
    """A column of strings or binaries, as strings; RowError for bytes that are no text."""
    kinds = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    try:
        return column.cast(kinds.get(column.type, column.type))
    except pa.ArrowInvalid:
        raise RowError(
            f"forebay: column {name!r} has bytes that are not UTF-8, and must be texts: "
            "hex(column) or base64(column) makes some"
        ) from None


def _columns(batch: Any, plan: SinkPlan, now_ms: int) -> Iterator[tuple[str, Any]]:
    """The columns that rows are grouped by, without nulls, in the units of a run."""
    if plan.priority_column is not None:
        name = plan.priority_column
        column = _priorities(name, batch.column(name), plan.priority_labels)
        column = pc.fill_null(column, plan.priority)
        _check_range(name, column, 0, PRIORITY_MAX, "a priority is 0 to 255")
        yield "priority", column
    if plan.due_column is not None:
        column = pc.fill_null(_epoch_ms(batch.column(plan.due_column)), 0)
        what = "a due time is in milliseconds since 1970, and not before"
        _check_range(plan.due_column, column, 0, TIME_MS_MAX, what)
        # What was due before is due at once, as 0 is, and rows without a delay share their runs.
        is_over = pc.less_equal(column, now_ms)
        yield "due_ms", pc.if_else(is_over, pa.scalar(0, pa.int64()), column)
    if plan.delay_column is not None:
        yield "due_ms", _due_of_delays(plan.delay_column, batch.column(plan.delay_column), now_ms)
    for field, text_column, most in (
        ("flow", plan.flow_column, FLOW_BYTES_MAX),
        ("action", plan.action_column, ACTION_BYTES_MAX),
    ):
        if text_column is not None:
            yield field, _texts(text_column, batch.column(text_column), most)


def _priorities(name: str, column: Any, labels: Labels | None) -> Any:
    """Numbers as they are; texts by what they stand for, each different one looked up once."""
    if labels is None:
        return column.cast(pa.int64())
    encoded = as_texts(name, column).dictionary_encode()
    numbers = []
    for text in encoded.dictionary.to_pylist():
        number = read_number(text)
        number = labels.get(text) if number is None else number
        if number is None:
            raise RowError(
                f"forebay: column {name!r} has the value {text!r}, not a valid priority: "
                f"{possible(labels)}"
            )
        numbers.append(number)
    return pa.array(numbers, pa.int64()).take(encoded.indices)


def _epoch_ms(column: Any) -> Any:
    """Timestamps become whole milliseconds, upwards: an item is never delivered too early."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return pc.divide(pc.add(micros, 999), 1000)


def _due_of_delays(name: str, column: Any, now_ms: int) -> Any:
    """Delays in seconds; none, and 0, are due at once."""
    seconds = pc.fill_null(column.cast(pa.float64()), 0.0)
    _check_range(name, seconds, 0, DELAY_S_MAX, "a delay is in seconds, and not negative")
    millis = pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())
    return pc.if_else(pc.equal(millis, 0), pa.scalar(0, pa.int64()), pc.add(millis, now_ms))


def _texts(name: str, column: Any, most: int) -> Any:
    texts = pc.fill_null(as_texts(name, column).cast(pa.large_string()), "")
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest > most:
        raise RowError(f"forebay: column {name!r} has a value of {longest} bytes, at most {most}")
    return texts


def _check_range(name: str, column: Any, least: float, most: float, what: str) -> None:
    inside = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
    wrong = len(column) - (pc.sum(inside).as_py() or 0)
    if wrong:
        example = column.filter(pc.invert(inside))[0].as_py()
        raise RowError(f"forebay: column {name!r} has {wrong} rows as {example!r}: {what}")
