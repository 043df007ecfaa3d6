"""Arrow batches become runs: a column of payloads is two buffers, and a run copies parts of both.

Python works once per run, never per row. Rows keep their order within a run. Batches that are
smaller than a run are joined first, so that a job with small batches does not make small runs. They
are joined up to the bytes of one run: more would outgrow memory and 32-bit offsets.

A row is refused if its payload is null or larger than the daemon takes in a run, or if its id is
not valid. The `RowError` names the column, and the task fails with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from forebay.column import Packed, offsets_bytes
from forebay.encode import encode_columns
from forebay.ids import ITEM_ID_BYTES, RUN_ID_BYTES
from forebay.limits import KEY_BYTES_MAX, RUN_ITEMS_MAX
from forebay.spark.groups import RowError, as_texts, group_rows
from forebay.spark.plan import SinkPlan

ARRAY_BYTES_MAX: Final = 2**31 - 1
"""What 32-bit offsets reach. Spark's are wider if `useLargeVarTypes` says so."""
_ITEM_ID: Final = r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}-(?:0|[1-9][0-9]{0,3})$"
_RUN_TEXT_CHARS: Final = 36


class Texts:
    """An Arrow array of strings or binaries, as its two buffers; slices of it are not copies."""

    __slots__ = ("_data", "offsets")

    def __init__(self, array: Any) -> None:
        """`array` has 32-bit offsets, no nulls, and at least one value."""
        _, offsets, data = array.buffers()
        ends = memoryview(offsets).cast("B").cast("i")
        self.offsets = ends[array.offset : array.offset + len(array) + 1]
        self._data = memoryview(b"" if data is None else data).cast("B")

    def bytes_of(self, first: int, last: int) -> int:
        """What the values `first` to `last` (exclusive) take in a run."""
        return self.offsets[last] - self.offsets[first] + offsets_bytes(last - first)

    def packed(self, first: int, last: int) -> Packed:
        offsets = self.offsets[first : last + 1]
        return offsets.cast("B"), self._data[offsets[0] : offsets[-1]]


def put_together(batches: Iterable[Any], rows: int, bytes_max: int) -> Iterator[Any]:
    """The same rows in batches of at least `rows` rows, or as many as fit into `bytes_max`. A batch
    that is large enough is passed on as it is."""
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if waiting and size + batch.nbytes > bytes_max:
            yield _joined(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
        if size >= bytes_max or sum(part.num_rows for part in waiting) >= rows:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def runs_of(
    batch: Any,
    plan: SinkPlan,
    headers: Mapping[str, str],
    *,
    now_ms: int,
    max_run_bytes: int,
    array_bytes_max: int = ARRAY_BYTES_MAX,
) -> Iterator[bytes]:
    """The runs of a batch. Delays count from `now_ms`; a daemon takes runs of `max_run_bytes`."""
    options = plan.options
    limit = min(options.run_bytes, max_run_bytes)
    for part in _narrow(batch, plan, array_bytes_max):
        grouped = group_rows(part, plan, now_ms)
        rows = _Rows(part, plan, grouped.order)
        for group in grouped.groups:
            shared = group.shared
            for first, last in cut(group.first, group.last, options.run_items, limit, rows.size):
                if last - first == 1 and rows.size(first, last) > max_run_bytes:
                    size = rows.size(first, last)
                    raise RowError(_too_large(plan.payload, size, max_run_bytes))
                yield encode_columns(
                    last - first,
                    rows.payloads.packed(first, last),
                    keys=None if rows.keys is None else rows.keys.packed(first, last),
                    item_ids=rows.item_ids(first, last),
                    queue=options.queue,
                    flow=shared.flow,
                    action=shared.action,
                    priority=shared.priority,
                    due_ms=shared.due_ms,
                    headers=headers,
                    compressed=options.compressed,
                )


class _Rows:
    """Payloads, keys and ids of rows, in the order in which runs are cut."""

    def __init__(self, batch: Any, plan: SinkPlan, order: Any) -> None:
        payloads = _payloads(batch, plan.payload)
        keys = None if plan.key is None else _keys(batch, plan.key)
        ids = None if plan.item_id is None else batch.column(plan.item_id)
        if order is not None:
            payloads = payloads.take(order)
            keys = None if keys is None else keys.take(order)
            ids = None if ids is None else ids.take(order)
        self.payloads = Texts(payloads)
        self.keys = None if keys is None else Texts(keys)
        self._ids = ids
        self._ids_name = plan.item_id

    def size(self, first: int, last: int) -> int:
        """What the rows `first` to `last` (exclusive) take in a run."""
        size = self.payloads.bytes_of(first, last)
        if self.keys is not None:
            size += self.keys.bytes_of(first, last)
        if self._ids is not None:
            size += (last - first) * ITEM_ID_BYTES + offsets_bytes(last - first)
        return size

    def item_ids(self, first: int, last: int) -> Packed | None:
        if self._ids is None:
            return None
        try:
            return item_ids(self._ids.slice(first, last - first))
        except ValueError as problem:
            raise RowError(f"forebay: column {self._ids_name!r}: {problem}") from problem


def cut(
    first: int, last: int, items_max: int, bytes_max: int, size: Callable[[int, int], int]
) -> Iterator[tuple[int, int]]:
    """Cuts rows into runs of at most `items_max` items and `bytes_max` bytes, and at least one
    item."""
    while first < last:
        end = min(first + items_max, last)
        if size(first, end) > bytes_max:
            fits = bisect_right(range(first + 1, end + 1), bytes_max, key=partial(size, first))
            end = first + max(fits, 1)
        yield first, end
        first = end


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _narrow(batch: Any, plan: SinkPlan, bytes_max: int) -> Iterator[Any]:
    """Parts of the batch whose payloads and keys 32-bit offsets can reach."""
    names = [name for name in (plan.payload, plan.key) if name is not None]
    wide = [batch.column(name) for name in names]
    if batch.num_rows > 1 and any(_is_large(array) and array.nbytes > bytes_max for array in wide):
        half = batch.num_rows // 2
        yield from _narrow(batch.slice(0, half), plan, bytes_max)
        yield from _narrow(batch.slice(half), plan, bytes_max)
    else:
        yield batch


def _payloads(batch: Any, name: str) -> Any:
    array = batch.column(name)
    if array.null_count:
        raise RowError(
            f"forebay: column {name!r} has {array.null_count} nulls in {len(array)} rows: "
            "a payload may be empty, but not null; filter those rows out, or coalesce them"
        )
    return array.cast(pa.binary()) if _is_large(array) else array


def _keys(batch: Any, name: str) -> Any:
    """Keys as texts; a null is an item without a key, as an empty one is."""
    array = batch.column(name)
    if pa.types.is_integer(array.type):
        array = array.cast(pa.string())
    else:
        array = as_texts(name, array)
        array = array.cast(pa.binary()) if _is_large(array) else array
    if array.null_count:
        array = pc.fill_null(array, pa.scalar("").cast(array.type))
    longest = pc.max(pc.binary_length(array)).as_py()
    if longest > KEY_BYTES_MAX:
        raise RowError(
            f"forebay: column {name!r} has a key of {longest} bytes, at most {KEY_BYTES_MAX}"
        )
    return array


def _is_large(array: Any) -> bool:
    return bool(pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type))


def _too_large(name: str, size: int, most: int) -> str:
    return (
        f"forebay: column {name!r} has a row that makes a run of {size} bytes, and the daemon "
        f"takes at most {most} (its socket.max_run_bytes)"
    )


def item_ids(column: pa.Array) -> Packed:
    """The packed ids of a column of item ids; ValueError names the first invalid one.

    A dead letter that is read as a row, corrected and written with `retryOf` keeps its id: the new
    run lists the ids of its items, as does a run that the daemon makes from parts of others. The
    destination gets the item under its old id and can recognise it.

    Null is invalid too: an item that has no id yet is written without `retryOf`. All work is on
    columns, none per row: 0.8 µs per id.
    """
    texts = column.cast(pa.string())
    is_id = pc.fill_null(pc.match_substring_regex(texts, _ITEM_ID), False)
    if not pc.all(is_id, min_count=0).as_py():
        raise ValueError(f"not an item id: {texts[pc.index(is_id, False).as_py()].as_py()!r}")
    indexes = pc.utf8_slice_codeunits(texts, _RUN_TEXT_CHARS + 1).cast(pa.uint16())
    largest = pc.max(indexes).as_py()
    if largest is not None and largest >= RUN_ITEMS_MAX:
        raise ValueError(f"an item's index is below {RUN_ITEMS_MAX}, not {largest}")
    packed = pc.binary_join_element_wise(_run_ids(texts), _as_binary(indexes), b"")
    _, offsets, data = packed.buffers()
    count = len(column)
    # Arrow's buffers may be longer than their content.
    return _head(offsets, offsets_bytes(count)), _head(data, ITEM_ID_BYTES * count)


def _run_ids(texts: pa.Array) -> pa.Array:
    """16 bytes each; one call turns all digits of the column into bytes."""
    digits = pc.replace_substring(pc.utf8_slice_codeunits(texts, 0, _RUN_TEXT_CHARS), "-", "")
    data = bytes.fromhex(pc.binary_join(_as_one(digits), "")[0].as_py() or "")
    return _fixed(pa.py_buffer(data), len(texts), RUN_ID_BYTES)


def _as_one(column: pa.Array) -> pa.Array:
    """A list with one list: all values of the column."""
    return pa.LargeListArray.from_arrays(pa.array([0, len(column)], pa.int64()), column)


def _as_binary(indexes: pa.Array) -> pa.Array:
    """2 bytes each, little-endian."""
    return _fixed(indexes.buffers()[1], len(indexes), 2)


def _fixed(data: pa.Buffer | None, count: int, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), count, [None, data]).cast(pa.binary())


def _head(buffer: pa.Buffer, size: int) -> memoryview:
    return memoryview(buffer).cast("B")[:size]
