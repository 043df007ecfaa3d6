"""Heads of requests: the bytes that h11 would write, and nothing that it would refuse."""

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.config.http import HttpHandler
from daemon.handlers.http.request import Header, PlainRequests, RequestHead, target_of
from tests.daemon.handlers.http.batches import a_slice

SHARED: list[Header] = [(b"Accept-Encoding", b"identity"), (b"Host", b"crm"), (b"X-Key", b"a b")]
HEAD = RequestHead("POST", b"/hook?a=b", SHARED)

_names = st.text("Xa-!_ :\r\n\0ä", max_size=5).map(lambda text: text.encode("latin-1"))
_values = st.text("ab: \r\n\0\t\x85ÿ", max_size=5).map(lambda text: text.encode("latin-1"))


def written_by_h11(headers: list[Header]) -> bytes:
    request = h11.Request(method="POST", target=b"/hook?a=b", headers=[*SHARED, *headers])
    return h11.Connection(h11.CLIENT).send(request)


@settings(deadline=None)
@given(st.lists(st.tuples(_names, _values), max_size=4))
def test_a_head_is_what_h11_writes_or_is_refused(headers: list[Header]) -> None:
    try:
        expected = written_by_h11(headers)
    except h11.LocalProtocolError:
        with pytest.raises(ValueError, match="no header has"):
            HEAD.write(headers)
        return
    assert HEAD.write(headers) + b"\r\n" == expected


@pytest.mark.parametrize(
    "name, value",
    [
        (b"X-Id", b"1\r\nX-Evil: 1"),
        (b"X-Id", b"1\nX-Evil: 1"),
        (b"X-Id", b"1\r"),
        (b"X-Id", b"1\r\n\r\nGET / HTTP/1.1"),
        (b"X-Id: 1\r\nX-Evil", b"1"),
        (b"X-Id: 1\r\nX-Evil: 1\r\nX-Id", b"1"),
        (b"X-Id", b"\0"),
        (b"X-Id", b"\x7f"),
        (b"X-Id", b" 1"),
        (b"X Id", b"1"),
        (b"", b"1"),
    ],
)
def test_a_value_that_would_begin_a_line_of_its_own_is_refused(name: bytes, value: bytes) -> None:
    for headers in ([(name, value)], [(b"A", b"b"), (name, value), (b"C", b"d")]):
        with pytest.raises(ValueError, match="no header has"):
            HEAD.write(headers)


@pytest.mark.parametrize(
    "given_settings",
    [
        {},
        {"encoding": "raw", "method": "PUT"},
        {"compression": "gzip", "headers": {"Authorization": "Bearer x", "x-y": "ä"}},
        {"headers": {"content-type": "text/plain", "User-Agent": ""}},
    ],
)
@pytest.mark.parametrize("payloads", [[b"1"], [b"1", b"2"]])
def test_a_request_is_one_that_h11_reads_and_would_write(
    given_settings: dict[str, object], payloads: list[bytes]
) -> None:
    made = HttpHandler.model_validate({"url": "http://crm.example/hook?a=b", **given_settings})
    maker = PlainRequests(made, target_of(made.url), "")
    batch = [a_slice(*payloads, attempt=2, headers={"correlation_id": "c-7"})]
    (made_request,) = maker.make(list(enumerate(batch))).requests
    request = made_request.head + b"\r\n" + made_request.body
    server = h11.Connection(h11.SERVER)
    server.receive_data(request)
    head, body = server.next_event(), server.next_event()
    assert isinstance(head, h11.Request)
    assert isinstance(body, h11.Data)
    assert type(server.next_event()) is h11.EndOfMessage
    assert server.trailing_data == (b"", False)
    again = h11.Request(method=head.method, target=head.target, headers=head.headers.raw_items())
    assert request == h11.Connection(h11.CLIENT).send(again) + bytes(body.data)
