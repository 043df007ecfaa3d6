"""What a destination receives."""

import json
import zlib
from importlib.metadata import version
from typing import Any

import cramjam
import pytest

from daemon.handlers.http.request import target_of
from tests.daemon.handlers.http.batches import a_slice, damaged_slice, sending
from tests.daemon.handlers.http.faulty import FaultyServer, Request, faulty_server


async def received(*batch: Any, **settings: Any) -> Request:
    async with faulty_server() as server, sending(server.url(), **settings) as opened:
        await opened.delivers(*batch)
        (request,) = server.requests
        return request


async def test_a_batch_is_posted_with_all_that_is_said_of_it() -> None:
    batch = [a_slice(b"1", b"2", attempt=1), a_slice(b"3", attempt=4)]
    request = await received(*batch)
    key = request.headers.pop("idempotency-key")
    assert len(key) == 32
    host = request.headers.pop("host")
    assert host.startswith("127.0.0.1:")
    assert (request.method, request.path) == ("POST", "/hook")
    assert request.headers == {
        "accept-encoding": "identity",
        "user-agent": f"forebay/{version('forebayd')}",
        "content-type": "application/x-ndjson",
        "content-length": str(len(request.body)),
        "x-forebay-queue": "crm",
        "x-forebay-items": "3",
        "x-forebay-attempt": "4",
    }
    items = [json.loads(line) for line in request.body.splitlines()]
    assert [(item["payload"], item["attempt"]) for item in items] == [("1", 1), ("2", 1), ("3", 4)]


async def test_a_single_item_is_its_own_idempotency_key() -> None:
    batch = a_slice(b"1", b"2", bits=0b10)
    request = await received(batch, encoding="json")
    (item,) = json.loads(request.body)
    assert request.headers["idempotency-key"] == item["id"]
    assert request.headers["x-forebay-item-id"] == item["id"]
    assert request.headers["content-type"] == "application/json"


async def test_the_same_batch_has_the_same_key_and_another_has_another() -> None:
    part = a_slice(b"1", b"2", b"3")
    keys = [
        (await received(batch, compression=compression)).headers["idempotency-key"]
        for batch, compression in [(part, "none"), (part, "gzip"), (part.split(2)[0], "none")]
    ]
    assert keys[0] == keys[1] != keys[2]


async def test_raw_payloads_have_their_ids_beside_them() -> None:
    part = a_slice(b"one", b"two")
    request = await received(part, encoding="raw")
    assert request.body == b"one\ntwo"
    assert request.headers["content-type"] == "text/plain"
    ids = request.headers["x-forebay-item-ids"].split(",")
    assert [item_id.rpartition("-")[2] for item_id in ids] == ["0", "1"]
    assert "x-forebay-item-id" not in request.headers


async def test_more_ids_than_fit_into_a_header_are_left_out() -> None:
    request = await received(a_slice(*[b"x"] * 1000), encoding="raw")
    assert "x-forebay-item-ids" not in request.headers
    assert request.headers["x-forebay-items"] == "1000"


async def test_one_raw_payload_is_sent_as_it_is() -> None:
    request = await received(
        a_slice(b"\xff\n\x00"), encoding="raw", method="PUT", headers={"X-Key": "abc"}
    )
    assert (request.method, request.body) == ("PUT", b"\xff\n\x00")
    assert request.headers["content-type"] == "application/octet-stream"
    assert request.headers["x-key"] == "abc"


async def test_what_is_configured_takes_the_place_of_the_usual() -> None:
    headers = {"content-type": "application/json", "USER-AGENT": "me", "x-correlation-id": "mine"}
    part = a_slice(b"{}", headers={"correlation_id": "c-7"})
    request = await received(part, encoding="raw", headers=headers)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"] == "me"
    assert request.headers["x-correlation-id"] == "mine"


async def test_bodies_are_compressed_where_asked_for() -> None:
    part = a_slice(*[b"payload" * 20] * 50)
    plain = (await received(part)).body
    gzip = await received(part, compression="gzip")
    snappy = await received(part, compression="snappy")
    assert gzip.headers["content-encoding"] == "gzip"
    assert snappy.headers["content-encoding"] == "snappy"
    assert zlib.decompress(gzip.body, wbits=31) == plain
    assert bytes(cramjam.snappy.decompress_raw(snappy.body)) == plain
    assert max(len(gzip.body), len(snappy.body)) < len(plain) / 2


class TestHeadersOfRuns:
    async def test_are_passed_on_when_all_items_share_them(self) -> None:
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        headers = {"correlation_id": "c-7", "traceparent": trace, "other": "x"}
        request = await received(
            a_slice(b"1", headers=headers), a_slice(b"2", headers=headers | {"other": "y"})
        )
        assert request.headers["x-correlation-id"] == "c-7"
        assert request.headers["traceparent"] == trace
        assert "other" not in request.headers

    @pytest.mark.parametrize("other", [{}, {"correlation_id": "c-8"}])
    async def test_are_not_passed_on_when_items_differ(self, other: dict[str, str]) -> None:
        for runs in ([{"correlation_id": "c-7"}, other], [other, {"correlation_id": "c-7"}]):
            request = await received(*[a_slice(b"1", headers=headers) for headers in runs])
            assert "x-correlation-id" not in request.headers

    @pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "ä", "", " a", "\x00"])
    async def test_are_not_passed_on_where_http_cannot_say_them(self, value: str) -> None:
        request = await received(a_slice(b"1", headers={"correlation_id": value}))
        assert not {"x-correlation-id", "x-evil"} & set(request.headers)


class TestRejected:
    async def test_what_cannot_be_unpacked_is_reported_and_the_rest_is_sent(
        self, server: FaultyServer
    ) -> None:
        async with sending(server.url()) as opened:
            report = await opened.send(a_slice(b"1"), damaged_slice(), a_slice(b"2"))
        assert [(one.order, one.bits) for one in report.failures] == [(1, 0b11)]
        assert server.requests[0].headers["x-forebay-items"] == "2"

    async def test_nothing_is_sent_when_nothing_is_left(self, server: FaultyServer) -> None:
        async with sending(server.url()) as opened:
            report = await opened.send(damaged_slice())
        assert [(one.order, one.bits) for one in report.failures] == [(0, 0b11)]
        assert server.requests == []


@pytest.mark.parametrize(
    "url, destination, host, path",
    [
        ("http://Crm.Example", "http://crm.example:80", b"crm.example", b"/"),
        ("https://crm.example/a?b=c", "https://crm.example:443", b"crm.example", b"/a?b=c"),
        ("https://crm.example:80/", "https://crm.example:80", b"crm.example:80", b"/"),
        ("http://[::1]/x", "http://[::1]:80", b"[::1]", b"/x"),
        ("http://[::1]:81?q", "http://[::1]:81", b"[::1]:81", b"/?q"),
    ],
)
def test_targets(url: str, destination: str, host: bytes, path: bytes) -> None:
    target = target_of(url)
    assert (target.destination, target.host_header, target.path) == (destination, host, path)
