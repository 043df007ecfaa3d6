"""The bodies that handlers send: every item once, in order, and readable by anybody's parser."""

import json
import random
from base64 import b64decode

import pytest

from actors.model.slices import indexes
from daemon.handlers.items import Encoding, UnpackedRuns, encode_batch
from forebay.ids import format_item_id
from tests.daemon.handlers.http.batches import a_slice, damaged_slice, lent

AWKWARD = [b"", b'"\\/\b\f\n\r\t\x00\x7f', "ä\u2028\U0001f600".encode(), b'{"a":1}', b"\xff\x00"]


def test_an_object_has_all_the_fields_of_its_item() -> None:
    part = a_slice(
        b'{"a":1}', keys=[b'k"1'], headers={"correlation_id": "c-7", 'q"': "ä"}, attempt=3
    )
    encoded = encode_batch([part], "ndjson")
    assert json.loads(encoded.body) == {
        "id": format_item_id(part.run.head.run_id, 0),
        "queue": "crm",
        "key": 'k"1',
        "attempt": 3,
        "priority": 5,
        "flow": "nightly",
        "action": "upsert",
        "headers": {"correlation_id": "c-7", 'q"': "ä"},
        "payload": '{"a":1}',
    }


@pytest.mark.parametrize("encoding", ["ndjson", "json"])
def test_any_payload_comes_back_as_it_was(encoding: Encoding) -> None:
    body = encode_batch([a_slice(*AWKWARD)], encoding).body
    objects = json.loads(body) if encoding == "json" else list(map(json.loads, lines(body)))
    assert [
        b64decode(item["payload_b64"]) if "payload_b64" in item else item["payload"].encode()
        for item in objects
    ] == AWKWARD
    assert [("payload" in item, "payload_b64" in item) for item in objects] == [
        (True, False)
    ] * 4 + [(False, True)]
    assert all(item["key"] is None for item in objects)


def lines(body: bytes) -> list[bytes]:
    assert body.endswith(b"\n")
    return body[:-1].split(b"\n")


def test_a_key_that_is_no_text_is_shown_as_far_as_it_is() -> None:
    objects = lines(encode_batch([a_slice(b"1", b"2", keys=[b"\xffk", b""])], "ndjson").body)
    assert [json.loads(item)["key"] for item in objects] == ["\ufffdk", None]


@pytest.mark.parametrize("encoding", ["ndjson", "json", "raw"])
def test_items_of_several_slices_with_gaps_are_sent_in_order(encoding: Encoding) -> None:
    chance = random.Random(5)
    batch = []
    for run_number in range(4):
        payloads = [f"{run_number}/{index}".encode() for index in range(70)]
        keys = payloads if run_number % 2 else None
        batch.append(a_slice(*payloads, keys=keys, bits=chance.getrandbits(70) | 1 << 3))
    batch.append(a_slice(b"4/0"))
    encoded = encode_batch(batch, encoding)
    places = [(order, index) for order, part in enumerate(batch) for index in indexes(part.bits)]
    payloads_sent = [f"{order}/{index}" for order, index in places]
    assert encoded.places == places
    assert encoded.ids == [
        format_item_id(batch[order].run.head.run_id, index) for order, index in places
    ]
    assert encoded.rejected == ()
    if encoding == "raw":
        assert encoded.body.decode().split("\n") == payloads_sent
        return
    body = encoded.body
    objects = json.loads(body) if encoding == "json" else list(map(json.loads, lines(body)))
    assert [item["payload"] for item in objects] == payloads_sent
    assert [item["id"] for item in objects] == encoded.ids
    assert [item["key"] for item in objects] == [
        payload if payload[0] in "13" else None for payload in payloads_sent
    ]


def test_a_raw_batch_of_one_is_the_payload_itself() -> None:
    assert encode_batch([a_slice(b"\xff\n\n")], "raw").body == b"\xff\n\n"


@pytest.mark.parametrize("encoding", ["ndjson", "json", "raw"])
def test_a_run_that_cannot_be_unpacked_is_rejected_and_the_rest_is_sent(encoding: Encoding) -> None:
    good = a_slice(b"good")
    encoded = encode_batch([damaged_slice(), good], encoding)
    (rejected,) = encoded.rejected
    assert (rejected.order, rejected.bits) == (0, 0b11)
    assert rejected.failure.is_permanent
    assert not rejected.failure.blames_destination
    assert encoded.places == [(1, 0)]
    assert encoded.body == encode_batch([good], encoding).body


def test_bits_that_a_run_does_not_have_are_rejected() -> None:
    encoded = encode_batch([a_slice(b"1", b"2", bits=0b100)], "ndjson")
    assert [failed.bits for failed in encoded.rejected] == [0b100]
    assert encoded.body == b""


class TestUnpackedRuns:
    def test_a_run_is_unpacked_once_for_all_its_slices(self) -> None:
        cache = UnpackedRuns()
        first, rest = a_slice(b"1", b"2", b"3").split(1)
        assert rest is not None
        second, third = rest.split(1)
        assert third is not None
        run = cache.run_of(first)
        assert cache.run_of(second) is run
        assert cache.run_of(third) is run
        # With its last item it is used up.
        assert len(cache) == 0

    def test_a_run_that_is_wanted_as_a_whole_is_not_kept(self) -> None:
        cache = UnpackedRuns()
        cache.run_of(a_slice(b"1", b"2"))
        assert len(cache) == 0

    def test_the_oldest_goes_when_there_are_too_many_or_too_large(self) -> None:
        def first_of_two(size: int) -> object:
            return cache.run_of(a_slice(b"x" * size, b"y", bits=1))

        cache = UnpackedRuns(runs_max=3, bytes_max=10_000)
        for _ in range(5):
            first_of_two(10)
        assert len(cache) == 3
        first_of_two(9_980)
        assert len(cache) == 1
        first_of_two(20_000)
        assert len(cache) == 0
        first_of_two(10)
        assert len(cache) == 1

    def test_equal_runs_are_not_taken_for_each_other(self) -> None:
        cache = UnpackedRuns()
        one, other = (a_slice(b"1", b"2", bits=1) for _ in range(2))
        assert cache.run_of(one) is not cache.run_of(other)
        assert lent([b"1"]) != lent([b"1"])
