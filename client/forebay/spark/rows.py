"""Turns fetched runs into Arrow record batches: the rows that Spark reads.

Python does no work per item. Payloads and keys are the run's packed columns, whose layout is
Arrow's own. Values that the items of a run share are repeated by run-end decoding, and ids are
joined from the run's id and a table of indexes. Only runs that list their items' ids, because they
were made of parts of others, take 1 µs more per item.

Batches are small, so that the output of one step is still in the processor's cache in the next: 0.5
µs per item of 300 bytes in all with 2 MiB, 0.65 with a page of 30 MiB (with runs of 1,000 items;
0.4 and 0.6 with 3,500), written to a pipe. A batch costs 300 µs, whatever its size.

Only the requested columns are made. A run that cannot be unpacked raises a BadRun that names it: a
reader must not leave out items silently, and cannot tell the daemon that they are bad.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from forebay.column import offsets_bytes
from forebay.errors import BadRun
from forebay.head import IDS, KEYS, SNAPPY, RunHead, column_count
from forebay.ids import format_item_id, format_run_id, unpack_item_id
from forebay.limits import KEY_BYTES_MAX, RUN_ITEMS_MAX
from forebay.run import read_run
from forebay.snappy import decompress
from forebay.spark.columns import HEADERS, ITEM_SCHEMA, TIMESTAMP

if TYPE_CHECKING:
    from forebay.streams import FetchedRow

BATCH_BYTES: Final = 2 * 1024 * 1024
"""Of bodies, in a batch."""


def to_batches(
    rows: Sequence["FetchedRow"], schema: pa.Schema = ITEM_SCHEMA, bytes_max: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The items of these rows, in order, in batches of whole runs with at most `bytes_max` bytes of
    bodies, or one run; `schema` is ITEM_SCHEMA or a part of it."""
    parts: list[_Part] = []
    size = 0
    for row in rows:
        part = _unpack(row)
        if parts and size + part.head.raw_bytes > bytes_max:
            yield _batch(parts, schema)
            parts, size = [], 0
        parts.append(part)
        size += part.head.raw_bytes
    if parts:
        yield _batch(parts, schema)


def to_batch(rows: Sequence["FetchedRow"], schema: pa.Schema = ITEM_SCHEMA) -> pa.RecordBatch:
    """The same in one batch."""
    return _batch([_unpack(row) for row in rows], schema)


def _batch(parts: Sequence["_Part"], schema: pa.Schema) -> pa.RecordBatch:
    page = _Page(parts)
    return pa.RecordBatch.from_arrays([_MAKERS[name](page) for name in schema.names], schema=schema)


@dataclass(frozen=True, slots=True)
class _Part:
    """The items of one row. The packed columns have all items of the run."""

    head: RunHead
    attempt: int
    due_ms: int
    count: int
    """How many of them are meant."""
    mask: pa.Array | None
    """Which; None: all."""
    payloads: pa.Array
    keys: pa.Array | None
    ids: pa.Array | None

    def meant(self, column: pa.Array) -> pa.Array:
        return column if self.mask is None else column.filter(self.mask)


class _Page:
    """The parts of a batch, and how what the items of a part share is spread over them."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = parts
        self._ends = pa.array(accumulate(part.count for part in parts), pa.int32())

    def spread(self, values: pa.Array) -> pa.Array:
        """One value for each part, repeated for its items."""
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(self._ends, values))

    def shared(self, kind: pa.DataType, value: Callable[[_Part], Any]) -> pa.Array:
        return self.spread(pa.array([value(part) for part in self.parts], kind))

    def own(self, kind: pa.DataType, column: Callable[[_Part], pa.Array]) -> pa.Array:
        """A column in which each item has a value of its own."""
        if not self.parts:
            return pa.array([], kind)
        if len(self.parts) == 1:
            return self.parts[0].meant(column(self.parts[0]))
        return pa.concat_arrays([part.meant(column(part)) for part in self.parts])


def _unpack(row: "FetchedRow") -> _Part:
    run = read_run(row.run)
    head = run.head
    body = memoryview(row.run)[head.head_bytes : head.size]
    try:
        if head.flags & SNAPPY:
            body = memoryview(decompress(body, head.raw_bytes))
        columns = iter(_columns(body, head.count, column_count(head.flags)))
        mask = None if row.bits is None else _mask(row.bits, head.count)
        return _Part(
            head=head,
            attempt=row.attempt,
            due_ms=row.due_ms,
            count=head.count if row.bits is None else row.bits.bit_count(),
            mask=mask,
            payloads=next(columns),
            keys=next(columns) if head.flags & KEYS else None,
            ids=next(columns) if head.flags & IDS else None,
        )
    except BadRun as problem:
        problem.add_note(f"the run is {format_run_id(head.run_id)} of queue {head.queue}")
        raise


def _columns(body: memoryview, count: int, columns: int) -> list[pa.Array]:
    """The packed columns of a body as binary arrays that share its memory; BadRun if they are
    not exactly the body. The header was checked: the body has room for the offsets."""
    size = offsets_bytes(count)
    data_end = len(body) - columns * size
    arrays = []
    at = 0
    for offsets_at in range(data_end, len(body), size):
        raw = pa.py_buffer(body[offsets_at : offsets_at + size])
        offsets = pa.Array.from_buffers(pa.uint32(), count + 1, [None, raw])
        first = offsets[0].as_py()
        if first:
            # An offset below the first one wraps round, and is found to go backwards below.
            offsets = pc.subtract(offsets, pa.scalar(first, pa.uint32()))
        end = at + offsets[count].as_py()
        if end > data_end:
            raise BadRun("a column is longer than its body")
        data = pa.py_buffer(body[at:end])
        array = pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], data])
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as problem:
            raise BadRun("a column's offsets go backwards") from problem
        arrays.append(array)
        at = end
    if at != data_end:
        raise BadRun(f"the columns have {at} bytes, and the body has {data_end} for them")
    return arrays


def _mask(bits: int, count: int) -> pa.Array:
    """Bits are laid out as Arrow lays out booleans."""
    if bits.bit_length() > count:
        raise BadRun(f"a run of {count} items has no item {bits.bit_length() - 1}")
    packed = pa.py_buffer(bits.to_bytes((count + 7) // 8, "little"))
    return pa.Array.from_buffers(pa.bool_(), count, [None, packed])


@cache
def _index_texts() -> pa.Array:
    return pa.array(map(str, range(RUN_ITEMS_MAX)), pa.string())


def _ids(page: _Page) -> pa.Array:
    if any(part.ids is not None for part in page.parts):
        return page.own(pa.string(), _listed_ids)
    runs = page.shared(pa.string(), lambda part: format_run_id(part.head.run_id))
    indexes = page.own(pa.string(), lambda part: _index_texts().slice(0, part.head.count))
    return pc.binary_join_element_wise(runs, indexes, "-")


def _listed_ids(part: _Part) -> pa.Array:
    if part.ids is None:
        run = pa.scalar(format_run_id(part.head.run_id))
        return pc.binary_join_element_wise(run, _index_texts().slice(0, part.head.count), "-")
    try:
        texts = [format_item_id(*unpack_item_id(packed)) for packed in part.ids.to_pylist()]
    except ValueError as problem:
        raise BadRun(str(problem)) from None
    return pa.array(texts, pa.string())


def _keys(page: _Page) -> pa.Array:
    if all(part.keys is None for part in page.parts):
        return pa.nulls(sum(part.count for part in page.parts), pa.string())
    return page.own(pa.string(), _keys_of)


def _keys_of(part: _Part) -> pa.Array:
    if part.keys is None:
        return pa.nulls(part.head.count, pa.string())
    lengths = pc.binary_length(part.keys)
    if pc.max(lengths).as_py() > KEY_BYTES_MAX:
        raise BadRun(f"a key is longer than {KEY_BYTES_MAX} bytes")
    keys = pc.if_else(pc.equal(lengths, 0), pa.scalar(None, pa.binary()), part.keys)
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:  # Not UTF-8: shown as other consumers see it.
        texts = [None if key is None else key.decode(errors="replace") for key in keys.to_pylist()]
        return pa.array(texts, pa.string())


def _headers(page: _Page) -> pa.Array:
    maps = pa.array([list(part.head.headers().items()) for part in page.parts], HEADERS)
    which = page.spread(pa.array(range(len(page.parts)), pa.int32()))
    return maps.take(which)


def _due(page: _Page) -> pa.Array:
    return page.shared(TIMESTAMP, lambda part: part.due_ms * 1000 if part.due_ms else None)


_MAKERS: Final[dict[str, Callable[[_Page], pa.Array]]] = {
    "id": _ids,
    "key": _keys,
    "payload": lambda page: page.own(pa.binary(), lambda part: part.payloads),
    "priority": lambda page: page.shared(pa.int32(), lambda part: part.head.priority),
    "flow": lambda page: page.shared(pa.string(), lambda part: part.head.flow),
    "action": lambda page: page.shared(pa.string(), lambda part: part.head.action),
    "attempt": lambda page: page.shared(pa.int32(), lambda part: part.attempt),
    "headers": _headers,
    "enqueued_at": lambda page: page.shared(TIMESTAMP, lambda part: part.head.enqueued_ms * 1000),
    "due_at": _due,
}
