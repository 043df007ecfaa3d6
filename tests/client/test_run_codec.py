"""The run codec by example: what it refuses to write, slices, and life without native packages."""

import json
import subprocess
import sys
import textwrap
import threading
from array import array
from pathlib import Path
from random import Random
from typing import Any

import cramjam
import pytest

from forebay import snappy
from forebay.column import pack
from forebay.errors import BadRun
from forebay.ids import format_item_id, pack_item_id
from forebay.limits import (
    HEADER_VALUE_BYTES_MAX,
    HEADERS_BYTES_MAX,
    RUN_COMPRESS_BYTES_MIN,
    RUN_RAW_BYTES_DEFAULT,
    RUN_RAW_BYTES_MAX,
    TIME_MS_MAX,
)
from forebay.run import (
    CRC32,
    SNAPPY,
    Buffer,
    Run,
    check_queue_name,
    encode_columns,
    encode_run,
    read_head,
    read_run,
    verify,
)

CLIENT = Path(__file__).parents[2] / "client"
RUN_ID = bytes.fromhex("01980c5fe0007abc8def0123456789ab")
PAYLOADS = [b"one", b"", b"three", b"four" * 150, b"five"]
KEYS = [b"", b"b", b"cc", b"ddd", b""]

assert sum(map(len, PAYLOADS)) > RUN_COMPRESS_BYTES_MIN


def sample(**fields: Any) -> Run:
    return read_run(encode_run(PAYLOADS, queue="crm", run_id=RUN_ID, **fields))


def column(*offsets: int, data: bytes = b"") -> tuple[Buffer, Buffer]:
    return array("I", offsets).tobytes(), data


class TestSlices:
    @pytest.mark.parametrize("compressed", [True, False])
    @pytest.mark.parametrize("first, last", [(0, 5), (0, 0), (5, 5), (1, 4), (4, 5), (2, None)])
    def test_slice_is_a_part_of_the_whole(
        self, first: int, last: int | None, compressed: bool
    ) -> None:
        ids = [pack_item_id(RUN_ID, 9 - index) for index in range(5)]
        run = sample(keys=KEYS, item_ids=ids, compressed=compressed)
        assert run.payloads(first, last) == PAYLOADS[first:last]
        assert run.keys(first, last) == KEYS[first:last]
        texts = [format_item_id(RUN_ID, 9 - index) for index in range(5)]
        assert run.item_ids(first, last) == texts[first:last]

    def test_slice_of_what_is_implied_has_the_same_items(self) -> None:
        run = sample()
        assert run.keys(1, 4) == [b""] * 3
        assert run.item_ids(3) == [format_item_id(RUN_ID, 3), format_item_id(RUN_ID, 4)]

    @pytest.mark.parametrize(
        "first, last", [(-1, None), (0, 6), (6, None), (6, 6), (3, 2), (0, -1)]
    )
    @pytest.mark.parametrize("implied", [True, False])
    def test_items_that_the_run_does_not_have_are_an_index_error(
        self, first: int, last: int | None, implied: bool
    ) -> None:
        ids = [pack_item_id(RUN_ID, index) for index in range(5)]
        run = sample() if implied else sample(keys=KEYS, item_ids=ids)
        for accessor in (run.payloads, run.keys, run.item_ids):
            with pytest.raises(IndexError, match="in a run of 5"):
                accessor(first, last)

    def test_damaged_column_is_refused_whichever_slice_is_asked_for(self) -> None:
        """Otherwise half of a run would be delivered before the other half is found to be bad."""
        data = encode_columns(3, column(0, 5, 2, 7, data=b"1234567"), queue="crm")
        for first, last in ((0, 1), (0, 0), (2, 3)):
            with pytest.raises(BadRun, match="backwards"):
                read_run(data).payloads(first, last)


class TestEncodeRefuses:
    """A producer hears of its mistake; no run is written that a worker could not read."""

    @pytest.mark.parametrize(
        "fields, complaint",
        [
            ({"queue": ""}, "not a valid queue name"),
            ({"queue": "a b"}, "not a valid queue name"),
            ({"queue": "crm\n"}, "not a valid queue name"),
            ({"queue": "é"}, "not a valid queue name"),
            ({"queue": "q" * 129}, "not a valid queue name"),
            ({"priority": -1}, "priority"),
            ({"priority": 256}, "priority"),
            ({"attempt": -1}, "attempt"),
            ({"attempt": 65536}, "attempt"),
            ({"due_ms": -1}, "time"),
            ({"due_ms": TIME_MS_MAX + 1}, "time"),
            ({"enqueued_ms": TIME_MS_MAX + 1}, "time"),
            ({"flow": "f" * 256}, "flow"),
            ({"flow": "é" * 128}, "flow"),
            ({"action": "a" * 256}, "action"),
            ({"action": "\ud800"}, "UTF-8"),
            ({"headers": {"": "v"}}, "no name"),
            ({"headers": {"n" * 256: "v"}}, "name"),
            ({"headers": {"n": "v" * (HEADER_VALUE_BYTES_MAX + 1)}}, "value"),
            ({"headers": {"\udfff": "v"}}, "UTF-8"),
            ({"headers": {str(n): "v" * 4000 for n in range(5)}}, "over the limit"),
            ({"run_id": b""}, "16 bytes"),
            ({"run_id": RUN_ID[:15]}, "16 bytes"),
            ({"run_id": RUN_ID + b"0"}, "16 bytes"),
            ({"keys": [b"k"]}, "1 keys for 2 items"),
            ({"keys": [b"k" * 201, b""]}, "longer than 200"),
            ({"item_ids": [RUN_ID + b"00"]}, "1 ids for 2 items"),
            ({"item_ids": [RUN_ID, RUN_ID + b"\x00\x00"]}, "not 18 bytes"),
            ({"item_ids": [RUN_ID + b"\x00\x00", RUN_ID + b"\x00\x10"]}, "4096"),
        ],
    )
    def test_what_no_run_can_hold(self, fields: dict[str, Any], complaint: str) -> None:
        with pytest.raises(BadRun, match=complaint):
            encode_run([b"a", b"b"], **{"queue": "crm"} | fields)

    @pytest.mark.parametrize("count", [0, 4097])
    def test_too_few_or_too_many_items(self, count: int) -> None:
        with pytest.raises(BadRun, match=f"1 to 4096 items, not {count}"):
            encode_run([b""] * count, queue="crm")

    def test_body_over_the_limit(self) -> None:
        with pytest.raises(BadRun, match="over the limit"):
            encode_run([bytes(RUN_RAW_BYTES_MAX - 7)], queue="crm")

    @pytest.mark.parametrize(
        "columns, complaint",
        [
            ({"payloads": column(0, 1, data=b"a")}, "12 bytes of offsets|8 bytes of offsets"),
            ({"payloads": column(0, 1, 2, 3, data=b"abc")}, "16 bytes of offsets"),
            ({"payloads": column(0, 1, 2, data=b"abc")}, "3 bytes, and offsets for 2"),
            ({"payloads": column(7, 8, 9, data=b"a")}, "1 bytes, and offsets for 2"),
            ({"payloads": column(9, 8, 7, data=b"")}, "0 bytes, and offsets for -2"),
            ({"keys": column(0, 1, data=b"a")}, "keys have 8 bytes of offsets"),
            ({"keys": column(0, 2, 1, data=b"a")}, "backwards"),
            ({"keys": column(0, 201, 201, data=b"k" * 201)}, "longer than 200"),
            ({"item_ids": column(0, 18, 18, data=bytes(18))}, "not 18 bytes"),
            ({"item_ids": column(0, 18, data=bytes(18))}, "ids have 8 bytes of offsets"),
        ],
    )
    def test_columns_that_do_not_fit(self, columns: dict[str, Any], complaint: str) -> None:
        given = {"payloads": column(0, 1, 2, data=b"ab")} | columns
        with pytest.raises(BadRun, match=complaint):
            encode_columns(2, given.pop("payloads"), queue="crm", **given)


class TestEncode:
    def test_texts_may_be_as_long_as_the_format_allows(self) -> None:
        headers = {str(n): "v" * 4089 for n in range(4)}
        run = sample(flow="f" * 255, action="é" * 127, headers=headers)
        assert (run.head.flow, run.head.action) == ("f" * 255, "é" * 127)
        assert run.head.headers() == headers
        assert len(run.head.packed_headers) <= HEADERS_BYTES_MAX

    def test_body_may_be_as_long_as_the_format_allows(self) -> None:
        payload = bytes(RUN_RAW_BYTES_MAX - 8)
        run = read_run(encode_run([payload], queue="crm"))
        assert run.head.raw_bytes == RUN_RAW_BYTES_MAX
        assert run.payloads() == [payload]

    def test_body_that_gets_no_smaller_stays_as_it_is(self) -> None:
        noise = Random(1).randbytes(1000)
        run = read_run(encode_run([noise], queue="crm"))
        assert not run.head.flags & SNAPPY
        assert run.payloads() == [noise]
        assert read_run(encode_run([b"x" * 1000], queue="crm")).head.flags & SNAPPY

    def test_short_body_is_not_even_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shortest = bytes(RUN_COMPRESS_BYTES_MIN - 8)
        assert read_run(encode_run([shortest], queue="crm")).head.flags & SNAPPY
        monkeypatch.setattr(snappy, "compress", lambda data: pytest.fail("it was"))
        run = read_run(encode_run([shortest[1:]], queue="crm"))
        assert not run.head.flags & SNAPPY
        assert run.payloads() == [shortest[1:]]

    def test_columns_are_copied_as_they_are(self) -> None:
        """No work for each row: what is given stands in the run byte for byte."""
        payloads = column(70, 73, 75, data=b"aaabb")
        keys = column(9, 9, 10, data=b"k")
        ids = column(0, 18, 36, data=bytes(36))
        data = encode_columns(2, payloads, queue="crm", keys=keys, item_ids=ids, compressed=False)
        expected = payloads[1], keys[1], ids[1], payloads[0], keys[0], ids[0]
        assert data[read_head(data).head_bytes :] == b"".join(expected)

    @pytest.mark.parametrize("format_", ["B", "b", "c"])
    @pytest.mark.parametrize("compressed", [True, False])
    def test_columns_may_be_views_of_any_bytes(self, format_: Any, compressed: bool) -> None:
        """Arrow's buffers show themselves as signed bytes."""
        offsets, data = pack(PAYLOADS)
        views = memoryview(bytearray(offsets)).cast(format_), memoryview(data).cast(format_)
        encoded = encode_columns(5, views, queue="crm", compressed=compressed)
        assert read_run(encoded).payloads() == PAYLOADS

    def test_slice_of_an_arrow_array_is_taken_with_its_own_offsets(self) -> None:
        offsets, data = pack([b"before", *PAYLOADS, b"after"])
        first, last = 6, 6 + sum(map(len, PAYLOADS))
        encoded = encode_columns(5, (offsets[4:-4], data[first:last]), queue="crm")
        assert read_run(encoded).payloads() == PAYLOADS

    def test_runs_of_one_producer_rise(self) -> None:
        made = [read_head(encode_run([b""], queue="crm")).run_id for _ in range(100)]
        assert made == sorted(made)

    @pytest.mark.parametrize("payload_bytes", [1_000, RUN_RAW_BYTES_DEFAULT, 3_000_000])
    def test_threads_encode_side_by_side(self, payload_bytes: int) -> None:
        wrong: list[int] = []

        def work(number: int) -> None:
            payload = bytes([number]) * payload_bytes
            for _ in range(20):
                if read_run(encode_run([payload], queue="crm")).payloads() != [payload]:
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(snappy._spare) <= 1

    def test_buffer_in_use_is_not_given_to_another_thread(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other thread comes while the first one compresses: here, as a call within it."""
        compress = snappy.compress
        assert compress is not None
        others: list[bytes] = []

        def interrupted(data: Buffer) -> bytes:
            monkeypatch.setattr(snappy, "compress", compress)
            others.append(encode_run([b"other" * 300], queue="crm"))
            return compress(data)

        encode_run([b"one" * 300], queue="crm")
        monkeypatch.setattr(snappy, "compress", interrupted)
        encoded = encode_run([b"one" * 300], queue="crm")
        assert read_run(encoded).payloads() == [b"one" * 300]
        assert read_run(others[0]).payloads() == [b"other" * 300]

    def test_longer_run_leaves_nothing_behind_in_a_shorter_one(self) -> None:
        encode_run([b"secret" * 1000], queue="crm")
        run = read_run(encode_run([b"x" * 600], queue="crm"))
        assert run.head.flags & SNAPPY
        assert run.payloads() == [b"x" * 600]


class TestRead:
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    @pytest.mark.parametrize("compressed", [True, False])
    def test_run_is_read_from_any_buffer(self, kind: Any, compressed: bool) -> None:
        data = encode_run(PAYLOADS, queue="crm", keys=KEYS, compressed=compressed)
        run = read_run(kind(data))
        assert run.payloads() == PAYLOADS
        assert run.keys() == KEYS
        assert {type(value) for value in run.payloads() + run.keys()} == {bytes}

    def test_run_is_read_in_the_middle_of_a_receive_buffer(self) -> None:
        data = encode_run(PAYLOADS, queue="crm")
        buffer = bytearray(b"x" * 7 + data + b"y" * 9)
        assert read_run(memoryview(buffer)[7:-9]).payloads() == PAYLOADS

    def test_daemon_may_set_a_lower_limit(self) -> None:
        data = encode_run([bytes(92)], queue="crm")
        assert read_run(data, raw_bytes_max=100).head.raw_bytes == 100
        with pytest.raises(BadRun, match="100 bytes is over the limit of 99"):
            read_head(data, raw_bytes_max=99)

    def test_checksum_covers_every_byte(self) -> None:
        data = encode_run([b"ab"], queue="crm", headers={"n": "v"}, compressed=False)
        for at in range(len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 0x40
            with pytest.raises(BadRun):
                read_run(damaged)

    def test_decompressor_that_writes_too_little_is_not_trusted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = read_run(encode_run([b"x" * 1000], queue="crm"))
        monkeypatch.setattr(snappy, "_decompress_into", lambda data, out: 5)
        with pytest.raises(BadRun, match="has 5 bytes, not 1008"):
            run.payloads()

    def test_body_of_another_length_is_not_given_to_the_decompressor(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snappy, "_decompress_into", lambda data, out: pytest.fail("it was"))
        squeezed = memoryview(bytes(cramjam.snappy.compress_raw(b"x" * 100)))
        for raw_bytes in (99, 101):
            with pytest.raises(BadRun, match="disagree about the length"):
                snappy.decompress(squeezed, raw_bytes)

    def test_length_of_more_than_32_bits_is_no_length(self) -> None:
        for varint in (b"", b"\x80", b"\xff" * 5, b"\xff\xff\xff\xff\x10", b"\x80" * 5 + b"\x01"):
            with pytest.raises(BadRun, match="no length"):
                snappy.raw_length(memoryview(varint))
        assert snappy.raw_length(memoryview(b"\xff\xff\xff\xff\x0f")) == 2**32 - 1

    def test_ratio_limit_admits_the_best_that_snappy_can_do(self) -> None:
        """Copies of 64 bytes in 3: nothing in the format is denser."""
        raw = bytes(1_000_000) + pack([bytes(1_000_000)])[0]
        squeezed = bytes(cramjam.snappy.compress_raw(raw))
        assert len(squeezed) * 22 > len(raw) > len(squeezed) * 20
        assert read_run(encode_run([bytes(1_000_000)], queue="crm")).payloads()


class TestQueueNames:
    @pytest.mark.parametrize("name", ["a", "0", "crm.eu-1_b", "A" * 128])
    def test_good(self, name: str) -> None:
        check_queue_name(name)

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "-a", "_a", "a/b", "a b", "a\n", "ａ", "A" * 129]
    )
    def test_bad(self, name: str) -> None:
        with pytest.raises(BadRun, match="not a valid queue name"):
            check_queue_name(name)


class TestWithoutNativePackages:
    """A client with the standard library alone writes uncompressed runs with CRC-32."""

    def test_runs_are_written_and_read(self) -> None:
        answer = alone(
            """
            from forebay.run import encode_run, read_run
            data = encode_run([b"x" * 1000, b"y"], queue="crm", keys=[b"a", b""])
            run = read_run(data)
            assert run.payloads() == [b"x" * 1000, b"y"] and run.keys() == [b"a", b""]
            answer = data.hex()
            """,
            without=("cramjam", "crc32c"),
        )
        data = bytes.fromhex(answer)
        run = read_run(data)
        assert run.head.flags & (SNAPPY | CRC32) == CRC32
        assert run.payloads() == [b"x" * 1000, b"y"]

    @pytest.mark.parametrize(
        "missing, complaint",
        [("cramjam", "the package cramjam is not installed"), ("crc32c", "the package crc32c is")],
    )
    def test_what_cannot_be_read_says_which_package_is_missing(
        self, missing: str, complaint: str
    ) -> None:
        data = encode_run([b"x" * 1000], queue="crm")
        assert read_head(data).flags & SNAPPY
        answer = alone(
            f"""
            from forebay.run import BadRun, read_head, read_run
            data = bytes.fromhex("{data.hex()}")
            assert read_head(data).queue == "crm"
            try:
                read_run(data).payloads()
            except BadRun as error:
                answer = str(error)
            """,
            without=(missing,),
        )
        assert complaint in answer

    def test_compressed_run_of_a_full_client_is_verified_without_cramjam(self) -> None:
        data = encode_run([b"x" * 1000], queue="crm")
        assert read_head(data).flags & SNAPPY
        answer = alone(
            f"""
            from forebay.run import read_run
            answer = read_run(bytes.fromhex("{data.hex()}")).head.count
            """,
            without=("cramjam",),
        )
        assert answer == 1

    def test_import_pulls_in_the_standard_library_and_two_packages(self) -> None:
        before, after = alone(
            """
            before = set(sys.modules)
            import forebay
            import forebay.client, forebay.run, forebay.wire
            answer = [sorted(before), sorted(set(sys.modules) - before)]
            """
        )
        packages = {name.partition(".")[0] for name in after}
        assert packages - set(sys.stdlib_module_names) == {"forebay", "cramjam", "crc32c"}
        assert not {"trio", "asyncio", "pydantic"} & (set(before) | packages)


def alone(script: str, without: tuple[str, ...] = ()) -> Any:
    """What `answer` is after the script has run in a fresh process, without these packages."""
    installed = str(Path(cramjam.__file__).parents[1])
    prelude = f"""
import json, sys
sys.path[:0] = [{str(CLIENT)!r}, {installed!r}]
for name in {without!r}:
    sys.modules[name] = None
"""
    program = prelude + textwrap.dedent(script) + "\nprint(json.dumps(answer))\n"
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_crc32_run_is_verified_with_crc32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.head.crc32c", None)
    data = encode_run([b"a"], queue="crm")
    monkeypatch.undo()
    head = read_head(data)
    assert head.flags & CRC32
    verify(head, data)
