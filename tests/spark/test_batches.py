"""Arrow batches become runs: all rows, each once, in order, with what their columns say."""

import json
import mmap
from array import array
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from forebay import Run, read_run
from forebay.ids import format_item_id, new_run_id
from forebay.spark.batches import cut, put_together, runs_of
from forebay.spark.groups import RowError
from forebay.spark.plan import make_plan, with_labels
from forebay.writes import WRITE_HEADER

NOW_MS = 1_755_000_000_000
HEADERS = {WRITE_HEADER: "00" * 16}
TYPES: dict[Any, t.DataType] = {
    pa.string(): t.StringType(),
    pa.large_string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.large_binary(): t.BinaryType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.float64(): t.DoubleType(),
    pa.timestamp("us", tz="UTC"): t.TimestampType(),
}


def runs(batch: pa.RecordBatch, max_run_bytes: int = 1 << 20, /, **options: str) -> list[Run]:
    schema = t.StructType([t.StructField(at.name, TYPES[at.type]) for at in batch.schema])
    plan = make_plan({"queue": "crm", **options}, schema)
    made = runs_of(batch, plan, HEADERS, now_ms=NOW_MS, max_run_bytes=max_run_bytes)
    return [read_run(run) for run in made]


def payloads(made: list[Run]) -> list[bytes]:
    return [payload for run in made for payload in run.payloads()]


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_payloads_of_every_type_are_copied(kind: pa.DataType) -> None:
    texts = [f"pay\u00e4load {number}" * (number % 5) for number in range(5200)]
    made = runs(
        batch_of(payload=pa.array([text.encode() for text in texts], pa.binary()).cast(kind))
    )
    assert payloads(made) == [text.encode() for text in texts]
    assert [run.head.count for run in made] == [2500, 2500, 200]
    assert made[0].head.headers() == HEADERS


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()])
def test_a_slice_of_an_array_is_copied_from_where_it_begins(kind: pa.DataType) -> None:
    whole = batch_of(
        payload=pa.array([f"p{number}" for number in range(100)]).cast(kind),
        key=pa.array([f"k{number}" for number in range(100)]).cast(kind),
    )
    made = runs(whole.slice(13, 50), key="key", runItems="20")
    assert payloads(made) == [f"p{number}".encode() for number in range(13, 63)]
    keys = list(chain.from_iterable(run.keys() for run in made))
    assert keys == [f"k{number}".encode() for number in range(13, 63)]


def test_empty_payloads_are_items() -> None:
    assert payloads(runs(batch_of(payload=pa.array(["", "", ""])))) == [b"", b"", b""]


def test_nulls_in_the_payload_are_an_error_that_names_the_column_and_how_many() -> None:
    batch = batch_of(text=pa.array(["a", None, "b", None]).slice(1))
    with pytest.raises(RowError, match=r"'text' has 2 nulls in 3 rows"):
        runs(batch, payload="text")


def test_a_row_over_the_daemons_limit_is_an_error_and_one_over_runBytes_is_not() -> None:
    batch = batch_of(payload=pa.array(["a", "b" * 3000, "c"]))
    made = runs(batch, runBytes="1000")
    assert [run.head.count for run in made] == [1, 1, 1]
    assert payloads(made) == [b"a", b"b" * 3000, b"c"]
    with pytest.raises(RowError, match="takes at most 2048"):
        runs(batch, 2048)


def test_runs_are_cut_by_bytes_with_the_offsets_and_the_keys_counted() -> None:
    batch = batch_of(payload=pa.array(["x" * 100] * 100), key=pa.array(["k" * 20] * 100))
    made = runs(batch, key="key", runBytes="1000", compression="none")
    # (1000 - 2 * 4) // (100 + 20 + 2 * 4)
    assert [run.head.count for run in made] == [7] * 14 + [2]
    assert max(run.head.raw_bytes for run in made) <= 1000


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    items_max=st.integers(1, 20),
    bytes_max=st.integers(1, 100),
)
def test_a_cut_is_complete_ordered_and_as_large_as_it_may_be(
    sizes: list[int], items_max: int, bytes_max: int
) -> None:
    def size(first: int, last: int) -> int:
        return sum(sizes[first:last])

    pieces = list(cut(0, len(sizes), items_max, bytes_max, size))
    assert [row for first, last in pieces for row in range(first, last)] == list(range(len(sizes)))
    for first, last in pieces:
        assert last - first <= items_max
        assert last - first == 1 or size(first, last) <= bytes_max
        if last < len(sizes) and last - first < items_max:
            assert size(first, last + 1) > bytes_max


def test_large_arrays_are_cut_where_32_bits_end() -> None:
    batch = batch_of(
        payload=pa.array([f"{number:0100d}" for number in range(100)], pa.large_string()),
        priority=pa.array([number % 2 for number in range(100)], pa.int32()),
    )
    schema = t.StructType(
        [t.StructField("payload", t.StringType()), t.StructField("priority", t.IntegerType())]
    )
    plan = make_plan({"queue": "crm", "priority": "priority"}, schema)
    made = runs_of(batch, plan, HEADERS, now_ms=NOW_MS, max_run_bytes=1 << 20, array_bytes_max=3000)
    found = [read_run(run) for run in made]
    assert sorted(payloads(found)) == [f"{number:0100d}".encode() for number in range(100)]
    assert max(run.head.count for run in found) <= 15


def test_priorities_may_be_labels_numbers_in_words_or_missing() -> None:
    batch = batch_of(
        payload=pa.array(["a", "b", "c", "d"]), tier=pa.array(["now", "7", None, "now"])
    )
    schema = t.StructType([t.StructField(name, t.StringType()) for name in ("payload", "tier")])
    plan = with_labels(make_plan({"queue": "crm", "priority": "tier"}, schema), {"now": 1})
    made = runs_of(batch, plan, HEADERS, now_ms=NOW_MS, max_run_bytes=1 << 20)
    found = {run.head.priority: run.payloads() for run in map(read_run, made)}
    assert found == {1: [b"a", b"d"], 7: [b"b"], 5: [b"c"]}
    strange = batch_of(payload=pa.array(["a"]), tier=pa.array(["soon"]))
    with pytest.raises(RowError, match=r"'tier' has the value 'soon', .* knows: now \(1\)"):
        list(runs_of(strange, plan, HEADERS, now_ms=NOW_MS, max_run_bytes=1 << 20))


def test_keys_may_be_texts_numbers_or_missing() -> None:
    numbers = runs(
        batch_of(payload=pa.array(["a", "b"]), id=pa.array([7, None], pa.int64())), key="id"
    )
    assert numbers[0].keys() == [b"7", b""]
    texts = runs(batch_of(payload=pa.array(["a", "b"]), id=pa.array([None, "k"])), key="id")
    assert texts[0].keys() == [b"", b"k"]
    with pytest.raises(RowError, match="'id' has a key of 201 bytes"):
        runs(batch_of(payload=pa.array(["a"]), id=pa.array(["k" * 201])), key="id")


def test_rows_are_grouped_by_all_that_a_run_shares_and_keep_their_order() -> None:
    rows = 1000
    priority = [None if row % 7 == 0 else row % 3 for row in range(rows)]
    flow = [("a", "b", None)[row % 3 if row % 2 else 0] for row in range(rows)]
    delay = [float(row % 4) / 2 for row in range(rows)]
    batch = batch_of(
        payload=pa.array([str(row) for row in range(rows)]),
        key=pa.array([f"k{row}" for row in range(rows)]),
        p=pa.array(priority, pa.int32()),
        f=pa.array(flow),
        d=pa.array(delay),
    )
    made = runs(batch, priority="p", flowColumn="f", delay="d", key="key", action="sync")
    seen = []
    for run in made:
        indexes = [int(payload) for payload in run.payloads()]
        assert indexes == sorted(indexes)
        assert run.keys() == [f"k{row}".encode() for row in indexes]
        for row in indexes:
            assert run.head.priority == (5 if priority[row] is None else priority[row])
            assert run.head.flow == (flow[row] or "")
            assert run.head.due_ms == (NOW_MS + round(delay[row] * 1000) if delay[row] else 0)
            assert run.head.action == "sync"
        seen += indexes
    assert sorted(seen) == list(range(rows))
    shared = Counter((run.head.priority, run.head.flow, run.head.due_ms) for run in made)
    assert max(shared.values()) == 1


def test_rows_that_lie_in_groups_stay_where_they_are() -> None:
    batch = batch_of(
        payload=pa.array([str(row) for row in range(30)]),
        p=pa.array([9] * 10 + [1] * 10 + [4] * 10, pa.int32()),
    )
    made = runs(batch, priority="p")
    assert [run.head.priority for run in made] == [9, 1, 4]
    assert payloads(made) == [str(row).encode() for row in range(30)]


def test_a_due_time_is_never_early() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    times = [at, at + timedelta(microseconds=1), None]
    batch = batch_of(
        payload=pa.array(["a", "b", "c"]), at=pa.array(times, pa.timestamp("us", tz="UTC"))
    )
    due = [run.head.due_ms for run in runs(batch, due="at")]
    millis = round(at.timestamp() * 1000)
    assert due == [millis, millis + 1, 0]
    batch = batch_of(payload=pa.array(["a"]), at=pa.array([millis], pa.int64()))
    assert runs(batch, due="at")[0].head.due_ms == millis


def test_due_times_that_are_over_share_a_run_with_those_due_at_once() -> None:
    due = [NOW_MS - 1000, NOW_MS - 7, NOW_MS, None, 0, NOW_MS + 1]
    batch = batch_of(payload=pa.array(list("abcdef")), at=pa.array(due, pa.int64()))
    made = runs(batch, due="at")
    assert [(run.head.count, run.head.due_ms) for run in made] == [(5, 0), (1, NOW_MS + 1)]


def test_a_delay_for_all_counts_from_now() -> None:
    made = runs(batch_of(payload=pa.array(["a"])), delay="1m30s")
    assert made[0].head.due_ms == NOW_MS + 90_000


@pytest.mark.parametrize(
    "column,options,says",
    [
        (pa.array([1, 256, -1], pa.int32()), {"priority": "x"}, "'x' has 2 rows as 256"),
        (pa.array([1.0, -2.0, 0.0]), {"delay": "x"}, "'x' has 1 rows as -2.0"),
        (pa.array([1.0, float("nan"), 0.0]), {"delay": "x"}, "'x' has 1 rows as nan"),
        (pa.array([1, -1, 0], pa.int64()), {"due": "x"}, "'x' has 1 rows as -1"),
        (pa.array(["f", "f" * 256, None]), {"flowColumn": "x"}, "'x' has a value of 256 bytes"),
    ],
)
def test_values_that_no_item_can_have_are_named(
    column: pa.Array, options: dict[str, str], says: str
) -> None:
    with pytest.raises(RowError, match=says):
        runs(batch_of(payload=pa.array(["a", "b", "c"]), x=column), 1 << 20, **options)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("option", ["key", "flowColumn", "actionColumn"])
def test_bytes_that_are_no_text_are_named_where_a_text_is_needed(
    option: str, kind: pa.DataType
) -> None:
    good = batch_of(payload=pa.array(["a", "b"]), x=pa.array(["\u00e4".encode(), None], kind))
    assert sum(run.head.count for run in runs(good, payload="payload", **{option: "x"})) == 2
    bad = batch_of(payload=pa.array(["a", "b"]), x=pa.array([b"\xff", b"ok"], kind))
    with pytest.raises(RowError, match=r"column 'x' has bytes that are not UTF-8"):
        runs(bad, payload="payload", **{option: "x"})


def test_items_that_have_ids_keep_them() -> None:
    ids = [format_item_id(new_run_id(), row) for row in range(300)]
    batch = batch_of(
        payload=pa.array([str(row) for row in range(300)]),
        id=pa.array(ids),
        p=pa.array([row % 3 for row in range(300)], pa.int32()),
    )
    made = runs(batch.slice(7), retryOf="id", priority="p", runBytes="2000", compression="none")
    found = {
        payload: at
        for run in made
        for payload, at in zip(run.payloads(), run.item_ids(), strict=True)
    }
    assert found == {str(row).encode(): ids[row] for row in range(7, 300)}
    assert max(run.head.raw_bytes for run in made) <= 2000
    wrong = batch_of(payload=pa.array(["a", "b"]), id=pa.array([ids[0], "7"]))
    with pytest.raises(RowError, match="column 'id': not an item id: '7'"):
        runs(wrong, retryOf="id")


def test_small_batches_are_put_together_and_empty_ones_left_out() -> None:
    batches = [
        batch_of(payload=pa.array([str(n)] * size)) for n, size in enumerate([3, 0, 4, 9, 2])
    ]
    full = list(put_together(iter(batches), 7, 1 << 20))
    assert [batch.num_rows for batch in full] == [7, 9, 2]
    assert full[1] is batches[3]


def test_batches_are_put_together_to_no_more_bytes_than_a_run_has() -> None:
    large = [batch_of(payload=pa.array([b"x" * 400])) for _ in range(5)]
    huge = batch_of(payload=pa.array([b"y" * 5000]))
    full = list(put_together(iter([*large, huge, large[0]]), 1000, 1000))
    assert [batch.num_rows for batch in full] == [2, 2, 1, 1, 1]
    assert full[3] is huge


def test_batches_that_no_32_bit_offset_reaches_together_stay_apart() -> None:
    """As Spark makes them of rows of 2.3 MB; the pages are never touched, so they cost nothing."""
    rows, size = 28, 2_300_000
    data = pa.py_buffer(mmap.mmap(-1, rows * size))
    offsets = pa.py_buffer(array("i", range(0, (rows + 1) * size, size)).tobytes())
    batch = batch_of(payload=pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data]))
    full = list(put_together(iter([batch] * 40), 1000, 1 << 20))
    assert [each.num_rows for each in full] == [rows] * 40


def test_small_batches_before_a_large_one_are_not_copied_with_it() -> None:
    small = batch_of(payload=pa.array(["a"]))
    large = batch_of(payload=pa.array(["b" * 100] * 100))
    assert list(put_together(iter([small, large]), 1000, 1000))[1] is large


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.binary(max_size=12), st.sampled_from([None, 0, 5, 200]), st.booleans()),
        min_size=1,
        max_size=50,
    ),
    first=st.integers(0, 20),
    items=st.integers(1, 9),
)
def test_no_row_is_lost_or_doubled_whatever_the_batch(
    rows: list[tuple[bytes, int | None, bool]], first: int, items: int
) -> None:
    tagged = [json.dumps([at, *map(str, row)]).encode() for at, row in enumerate(rows)]
    whole = batch_of(
        payload=pa.array(tagged),
        p=pa.array([row[1] for row in rows], pa.int32()),
        a=pa.array(["on" if row[2] else None for row in rows], pa.string()),
    )
    made = (
        runs(whole.slice(first), priority="p", actionColumn="a", runItems=str(items))
        if len(rows) > first
        else []
    )
    assert sorted(payloads(made)) == sorted(tagged[first:])
