"""Runs become record batches: what an item has, and nothing that it has not."""

import pyarrow as pa
import pytest

from forebay import BadRun, encode_columns, encode_run, read_run
from forebay.fetch_frames import FetchedRow
from forebay.head import CHECKSUM_AT, CHECKSUM_END, CRC32, FIXED, crc32, crc32c
from forebay.ids import format_run_id, new_run_id, pack_item_id
from forebay.run import take_items
from forebay.spark import rows
from forebay.spark.batches import item_ids
from forebay.spark.columns import ITEM_SCHEMA, chosen


def row(run: bytes, *, bits: int | None = None, due_ms: int = 0, attempt: int = 0) -> FetchedRow:
    return FetchedRow(0, due_ms, attempt, bits, run)


def test_an_item_has_all_its_columns() -> None:
    run_id = new_run_id()
    run = encode_run(
        [b"one", b"\xff\x00"],
        queue="q",
        keys=[b"k", b""],
        flow="f",
        action="a",
        priority=7,
        enqueued_ms=1_755_000_000_123,
        headers={"trace": "t1"},
        run_id=run_id,
    )
    batch = rows.to_batch([row(run, due_ms=1_755_000_060_000, attempt=3)])
    batch.validate(full=True)
    first, second = batch.to_pylist()
    assert (first["id"], second["id"]) == tuple(f"{format_run_id(run_id)}-{i}" for i in (0, 1))
    assert (first["key"], second["key"]) == ("k", None)
    assert (first["payload"], second["payload"]) == (b"one", b"\xff\x00")
    assert (first["priority"], first["flow"], first["action"]) == (7, "f", "a")
    assert first["attempt"] == 3
    assert first["headers"] == [("trace", "t1")]
    assert first["enqueued_at"].timestamp() == 1_755_000_000.123
    assert first["due_at"].timestamp() == 1_755_000_060


def test_runs_of_a_page_keep_their_order_and_their_own_values() -> None:
    runs = [
        encode_run([b"a0", b"a1"], queue="q", priority=1, headers={"n": "1"}),
        encode_run([b"b0"], queue="q", priority=2, keys=[b"key"]),
        encode_run([b"c0", b"c1", b"c2"], queue="q", priority=3, headers={"n": "3", "m": ""}),
    ]
    batch = rows.to_batch([row(run) for run in runs])
    assert batch["payload"].to_pylist() == [b"a0", b"a1", b"b0", b"c0", b"c1", b"c2"]
    assert batch["priority"].to_pylist() == [1, 1, 2, 3, 3, 3]
    assert batch["key"].to_pylist() == [None, None, "key", None, None, None]
    assert batch["headers"].to_pylist()[2:4] == [[], [("n", "3"), ("m", "")]]
    assert batch["id"].to_pylist() == [item for run in runs for item in read_run(run).item_ids()]
    assert batch["due_at"].null_count == 6


def test_only_the_items_that_are_meant_are_rows() -> None:
    whole = encode_run(
        [b"%d" % i for i in range(20)], queue="q", keys=[b"k%d" % i for i in range(20)]
    )
    rest = encode_run([b"x"], queue="q")
    batch = rows.to_batch([row(whole, bits=0b1000_0000_0000_0101), row(rest)])
    assert batch["payload"].to_pylist() == [b"0", b"2", b"15", b"x"]
    assert batch["key"].to_pylist() == ["k0", "k2", "k15", None]
    ids = read_run(whole).item_ids()
    assert batch["id"].to_pylist() == [ids[0], ids[2], ids[15], *read_run(rest).item_ids()]
    assert batch["attempt"].to_pylist() == [0] * 4


def test_items_of_a_run_made_of_parts_keep_their_ids() -> None:
    whole = encode_run([b"0", b"1", b"2"], queue="q")
    part = take_items(read_run(whole), [0, 2])
    batch = rows.to_batch([row(part), row(whole, bits=0b010)])
    ids = read_run(whole).item_ids()
    assert batch["id"].to_pylist() == [ids[0], ids[2], ids[1]]


def test_offsets_that_do_not_begin_at_0_are_those_of_an_arrow_slice() -> None:
    array = pa.array([b"skipped", b"one", b"", b"three"], pa.binary()).slice(1)
    _, offsets, data = array.buffers()
    packed = memoryview(offsets).cast("B")[4:20], memoryview(data).cast("B")[7:]
    run = encode_columns(3, packed, queue="q")
    assert rows.to_batch([row(run)])["payload"].to_pylist() == [b"one", b"", b"three"]


def test_a_large_compressed_run_is_read_whole() -> None:
    payloads = [b"payload %06d " % i * 10 for i in range(4096)]
    run = encode_run(payloads, queue="q")
    batch = rows.to_batch([row(run), row(run)])
    assert batch["payload"].to_pylist() == payloads * 2
    assert batch["id"][4095].as_py() == f"{format_run_id(read_run(run).head.run_id)}-4095"


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    schema = chosen(ITEM_SCHEMA, ["payload", "id"])
    batch = rows.to_batch([row(encode_run([b"x"], queue="q"))], schema)
    assert batch.schema.names == ["payload", "id"]
    with pytest.raises(ValueError, match=r"no column 'body' to read; the columns are id, key"):
        chosen(ITEM_SCHEMA, ["body"])


def test_a_key_that_is_no_text_is_shown_as_other_consumers_see_it() -> None:
    run = encode_run([b"x", b"y"], queue="q", keys=[b"\xff", b"ok"])
    assert rows.to_batch([row(run)])["key"].to_pylist() == ["�", "ok"]


@pytest.mark.parametrize(
    "offsets",
    [(0, 9, 2), (0, 2, 1), (5, 4, 7), (0, 1, 9)],
    ids=["past the end", "backwards", "below the first", "too long"],
)
def test_a_body_that_is_not_its_columns_is_a_bad_run(offsets: tuple[int, ...]) -> None:
    good = encode_run([b"x", b"y"], queue="q", compressed=False)
    body = read_run(good).head.head_bytes
    wrong = b"".join(offset.to_bytes(4, "little") for offset in offsets)
    damaged = bytearray(good)
    damaged[body + 2 : body + 14] = wrong
    with pytest.raises(BadRun):
        rows.to_batch([row(resealed(damaged))])


def test_a_bad_run_is_named() -> None:
    run = encode_run([b"x"], queue="q")
    with pytest.raises(BadRun, match="no item 3") as caught:
        rows.to_batch([row(run, bits=0b1000)])
    assert format_run_id(read_run(run).head.run_id) in caught.value.__notes__[0]


def test_a_column_of_ids_is_packed() -> None:
    ids = [(new_run_id(), index) for index in (0, 7, 255, 256, 4095)]
    texts = pa.array([f"{format_run_id(run)}-{index}" for run, index in ids])
    packed = item_ids(texts)
    assert bytes(packed[1]) == b"".join(pack_item_id(*each) for each in ids)
    run = encode_columns(5, item_ids(texts), queue="q", item_ids=packed)
    assert read_run(run).item_ids() == texts.to_pylist()
    assert bytes(item_ids(texts.slice(2, 2))[1]) == bytes(packed[1])[36:72]
    assert [len(part) for part in item_ids(texts.slice(0, 0))] == [4, 0]


@pytest.mark.parametrize("wrong", ["", "x", None, "0198c0de-0a00-7000-8000-000000000001-4096"])
def test_what_is_no_id_is_named(wrong: str | None) -> None:
    good = "0198c0de-0a00-7000-8000-000000000001-17"
    with pytest.raises(ValueError, match=r"not an item id|below 4096"):
        item_ids(pa.array([good, wrong], pa.string()))


def resealed(run: bytearray) -> bytes:
    """With the checksum that its bytes have now."""
    flags = FIXED.unpack_from(run)[2]
    algorithm = crc32 if flags & CRC32 else crc32c
    assert algorithm is not None
    view = bytes(run)
    crc = algorithm(view[CHECKSUM_END:], algorithm(view[:CHECKSUM_AT], 0))
    run[CHECKSUM_AT:CHECKSUM_END] = crc.to_bytes(4, "little")
    return bytes(run)


def test_batches_are_small_and_have_whole_runs_in_order() -> None:
    runs = [encode_run([b"%d-%d" % (run, at) for at in range(100)], queue="q") for run in range(7)]
    raw_bytes = read_run(runs[0]).head.raw_bytes
    fetched = [row(run) for run in runs]
    made = list(rows.to_batches(fetched, bytes_max=3 * raw_bytes))
    assert [batch.num_rows for batch in made] == [300, 300, 100]
    assert pa.Table.from_batches(made) == pa.Table.from_batches([rows.to_batch(fetched)])


def test_a_run_that_is_larger_than_a_batch_is_one() -> None:
    fetched = [row(encode_run([b"x" * 100], queue="q")) for _ in range(3)]
    assert [batch.num_rows for batch in rows.to_batches(fetched, bytes_max=1)] == [1, 1, 1]
    assert list(rows.to_batches([])) == []
