"""Golden runs: bytes that this version and every later one must read, and write, the same.

tests/vectors/make_runs.py made them from docs/formats.md, without the codec.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import BadRun
from forebay.head import crc32, crc32c
from forebay.ids import format_item_id, pack_item_id, parse_item_id
from forebay.limits import RUN_COMPRESS_BYTES_MIN
from forebay.run import CRC32, IDS, KEYS, SNAPPY, Run, encode_columns, encode_run, read_head, verify
from tests.vectors.make_runs import VECTORS, Vector, offsets_of, refused

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "vectors"
GOOD = {path.stem: path for path in sorted(FOLDER.glob("run_*.json"))}
REFUSED = json.loads((FOLDER / "refused_runs.json").read_text(encoding="utf-8"))


def load(name: str) -> Any:
    return json.loads(GOOD[name].read_text(encoding="utf-8"))


def unhex(values: list[str] | None) -> list[bytes] | None:
    return None if values is None else [bytes.fromhex(value) for value in values]


def use_checksum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "crc32":
        monkeypatch.setattr("forebay.head.crc32c", None)


def test_vectors_cover_what_a_run_can_be() -> None:
    vectors = [load(name) for name in GOOD]
    flags = {read_head(bytes.fromhex(vector["run"])).flags for vector in vectors}
    for flag in (SNAPPY, KEYS, IDS, CRC32):
        assert {bool(combination & flag) for combination in flags} == {True, False}
    assert {vector["head"]["count"] for vector in vectors} >= {1, 4096}
    assert any(vector["first_offset"] for vector in vectors)
    assert any(vector["headers"] for vector in vectors)
    assert len(vectors) == len(VECTORS)


@pytest.mark.parametrize("name", GOOD)
def test_golden_run_is_read(name: str) -> None:
    vector = load(name)
    data = bytes.fromhex(vector["run"])
    head = read_head(data)
    assert {field: getattr(head, field) for field in vector["head"]} == vector["head"] | {
        "run_id": bytes.fromhex(vector["head"]["run_id"])
    }
    assert head.size == len(data)
    assert head.headers() == vector["headers"]
    assert bool(head.flags & SNAPPY) == vector["compressed"]
    assert bool(head.flags & CRC32) == (vector["checksum"] == "crc32")

    verify(head, data)
    run = Run(head, data)
    assert run.payloads() == unhex(vector["payloads"])
    assert run.keys() == (unhex(vector["keys"]) or [b""] * head.count)
    implied = [format_item_id(head.run_id, index) for index in range(head.count)]
    assert run.item_ids() == (vector["item_ids"] or implied)


@pytest.mark.parametrize("name", GOOD)
def test_golden_run_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes where they are determined; Snappy may compress in more ways than one, and
    a short body is left as it is."""
    vector = load(name)
    use_checksum(vector["checksum"], monkeypatch)
    data = bytes.fromhex(vector["run"])
    fields = {field: vector["head"][field] for field in ENCODED}
    fields |= {
        "headers": vector["headers"],
        "run_id": bytes.fromhex(vector["head"]["run_id"]),
        "compressed": vector["compressed"],
    }
    columns: dict[str, Any] = {
        "keys": unhex(vector["keys"]),
        "item_ids": None
        if vector["item_ids"] is None
        else [pack_item_id(*parse_item_id(item_id)) for item_id in vector["item_ids"]],
    }
    payloads = unhex(vector["payloads"])
    assert payloads is not None
    if base := vector["first_offset"]:
        sliced: dict[str, Any] = {
            name: None if values is None else (offsets_of(values, base), b"".join(values))
            for name, values in columns.items()
        }
        count = len(payloads)
        column = offsets_of(payloads, base), b"".join(payloads)
        encoded = encode_columns(count, column, **fields, **sliced)
    else:
        encoded = encode_run(payloads, **fields, **columns)
    if vector["compressed"]:
        again, first = Run(read_head(encoded), encoded), Run(read_head(data), data)
        assert again.payloads() == first.payloads()
        assert again.keys() == first.keys()
        assert again.head.raw_bytes == first.head.raw_bytes
        short = SNAPPY * (first.head.raw_bytes < RUN_COMPRESS_BYTES_MIN)
        assert again.head.flags == first.head.flags & ~short
    else:
        assert encoded.hex() == vector["run"]


ENCODED = ("queue", "flow", "action", "priority", "due_ms", "enqueued_ms", "attempt")


@pytest.mark.parametrize("case", REFUSED, ids=[case["about"] for case in REFUSED])
def test_refused_run_is_refused_where_the_document_says(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["run"])
    assert found_in(data) == case["found_in"]


def found_in(data: bytes) -> str:
    """The first step that refuses these bytes."""
    step = "head"
    try:
        head = read_head(data)
        step = "checksum"
        verify(head, data)
        run = Run(head, data)
        step = "body"
        run.payloads()
        step = "keys"
        run.keys()
        step = "ids"
        run.item_ids()
    except BadRun:
        return step
    return "nothing"


def test_stored_vectors_are_what_the_document_makes() -> None:
    for vector in VECTORS:
        assert load(vector.name) == json.loads(json.dumps(vector.as_json())), vector.name
    assert refused() == REFUSED


def test_example_of_the_document_is_the_vector() -> None:
    document = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    dump = re.findall(r"^[0-9a-f]0  ((?:[0-9a-f]{2} ?)+)$", document, re.MULTILINE)
    data = bytes.fromhex(load("run_example")["run"])
    assert bytes.fromhex(" ".join(dump)) == data

    rows = re.findall(r"^\| ([0-9a-f]{2}) \| `([0-9a-f ]+)` \|", document, re.MULTILINE)
    assert b"".join(bytes.fromhex(text) for _, text in rows) == data
    at = 0
    for offset, text in rows:
        assert int(offset, 16) == at
        at += len(bytes.fromhex(text))


def test_vector_maker_knows_crc32c() -> None:
    from tests.vectors.make_runs import crc32c as in_python

    assert in_python(b"123456789") == 0xE3069283
    assert crc32c is not None
    assert crc32c(b"123456789", 0) == 0xE3069283
    assert crc32(b"123456789", 0) == 0xCBF43926


def test_vector_maker_is_independent_of_the_codec() -> None:
    source = (FOLDER / "make_runs.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import) (forebay|cramjam|crc32c)", source, re.MULTILINE)
    assert Vector("", "", [b""]).encode()[:4] == b"FBRN"
