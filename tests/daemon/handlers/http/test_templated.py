"""Requests made from templates, as a destination receives them."""

import json
from typing import Any

import pytest
from trio.testing import MockClock

from actors.config.http import HttpHandler
from actors.model.outcomes import ItemsFailed, Report
from actors.model.slices import Slice
from daemon.handlers.http.handler import HttpDelivery
from tests.daemon.handlers.http.batches import a_slice, damaged_slice, sending
from tests.daemon.handlers.http.faulty import Conversation, FaultyServer, Request, answer


def people(*names: str, **fields: Any) -> Slice:
    payloads = [json.dumps({"name": name, "team": name[0]}).encode() for name in names]
    return a_slice(*payloads, keys=[name.encode() for name in names], **fields)


def body(request: Request) -> Any:
    return json.loads(request.body)


def failed(report: Report) -> dict[tuple[int, int], str]:
    return {(one.order, one.bits): one.failure.text for one in report.failures}


async def sent(
    server: FaultyServer, request: dict[str, Any], *batch: Slice, **settings: Any
) -> Any:
    async with sending(server.url(path="/c?v=1"), request=request, **settings) as opened:
        return await opened.send(*batch)


class TestOneRequest:
    async def test_items_in_an_envelope(self, server: FaultyServer) -> None:
        request = {
            "method": "PATCH",
            "query": {"source": "{{ queue }}", "none": None},
            "headers": {"X-Flow": "{{ flow }}"},
            "item": {"attributes": {"type": "Contact"}, "Name": "{{ payload.name }}"},
            "body": {"allOrNone": False, "records": "{{ items }}"},
        }
        assert await sent(server, request, people("ann", "bo"), people("cy")) == Report()
        (got,) = server.requests
        assert (got.method, got.path) == ("PATCH", "/c?v=1&source=crm")
        assert got.headers["x-flow"] == "nightly"
        assert got.headers["content-type"] == "application/json"
        assert got.headers["x-forebay-items"] == "3"
        assert body(got) == {
            "allOrNone": False,
            "records": [
                {"attributes": {"type": "Contact"}, "Name": name} for name in ("ann", "bo", "cy")
            ],
        }

    async def test_without_an_item_payloads_are_sent_as_json(self, server: FaultyServer) -> None:
        await sent(server, {"body": {"inputs": "{{ items }}"}}, a_slice(b'{"a":1}', b'{"a":2}'))
        assert body(server.requests[0]) == {"inputs": [{"a": 1}, {"a": 2}]}

    async def test_lines(self, server: FaultyServer) -> None:
        request = {
            "headers": {"Content-Type": "application/x-ndjson"},
            "item": '{"index":{"_id":{{ key | tojson }}}}\n{{ payload | tojson }}\n',
        }
        await sent(server, request, people("ann", "bo"), compression="none")
        (got,) = server.requests
        assert got.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in got.body.splitlines()]
        assert lines[0::2] == [{"index": {"_id": "ann"}}, {"index": {"_id": "bo"}}]
        assert [line["name"] for line in lines[1::2]] == ["ann", "bo"]

    async def test_only_some_items_of_a_run(self, server: FaultyServer) -> None:
        await sent(server, {}, people("ann", "bo", "cy", "di", bits=0b1010))
        assert [one["name"] for one in body(server.requests[0])] == ["bo", "di"]

    async def test_delete_has_no_body(self, server: FaultyServer) -> None:
        request = {"method": "DELETE", "url": "/c/{{ key }}"}
        await sent(server, request, people("ann", "b/o"))
        assert [(one.method, one.path) for one in server.requests] == [
            ("DELETE", "/c/ann"),
            ("DELETE", "/c/b%2Fo"),
        ]
        assert {one.body for one in server.requests} == {b""}
        assert "content-type" not in server.requests[0].headers


class TestSeveralRequests:
    async def test_items_that_differ_go_in_different_requests(self, server: FaultyServer) -> None:
        request = {"headers": {"X-Team": "{{ payload.team }}"}, "item": "{{ payload.name }}"}
        report = await sent(server, request, people("ann", "bo", "al"), people("abe", "cy"))
        assert report == Report()
        assert [(one.headers["x-team"], body(one)) for one in server.requests] == [
            ("a", ["ann", "al", "abe"]),
            ("b", ["bo"]),
            ("c", ["cy"]),
        ]
        assert len({one.headers["idempotency-key"] for one in server.requests}) == 3

    @pytest.mark.parametrize(
        "request_",
        [
            {"url": "/{{ payload.team }}"},
            {"query": {"team": "{{ payload.team }}"}},
            {"method": "{{ 'PUT' if payload.team == 'a' else 'POST' }}"},
            {"body": {"team": "{{ payload.team }}", "people": "{{ items }}"}},
            {"body": "{{ payload.team }}: {{ items | join(',') }}"},
        ],
    )
    async def test_whatever_differs(self, server: FaultyServer, request_: dict[str, Any]) -> None:
        await sent(server, request_, people("ann", "bo", "al"))
        assert [one.headers["x-forebay-items"] for one in server.requests] == ["2", "1"]

    async def test_requests_are_filled_to_their_limits(self, server: FaultyServer) -> None:
        batch = people(*[f"a{number}" for number in range(7)], *["b1", "b2"])
        request = {"headers": {"X-Team": "{{ payload.team }}"}}
        await sent(server, request, batch, batch_items=3)
        assert [one.headers["x-forebay-items"] for one in server.requests] == ["3", "3", "1", "2"]

    async def test_a_request_has_about_batch_bytes(self, server: FaultyServer) -> None:
        batch = a_slice(*[json.dumps("x" * 600).encode()] * 5)
        await sent(server, {"query": {"n": "1"}}, batch, batch_bytes="1Ki")
        assert [one.headers["x-forebay-items"] for one in server.requests] == ["1"] * 5

    async def test_a_body_without_items_is_made_per_item(self, server: FaultyServer) -> None:
        request = {"body": {"query": "mutation", "variables": "{{ payload }}"}}
        await sent(server, request, a_slice(b'{"a":1}', b'{"a":1}'))
        assert [body(one) for one in server.requests] == [
            {"query": "mutation", "variables": {"a": 1}}
        ] * 2

    def test_batches_follow_how_many_requests_they_need(self) -> None:
        def taken(request: dict[str, Any] | None, *names: str, items: int = 100) -> list[int]:
            given = {"url": "http://crm/", "batch_items": items, "request": request}
            handler = HttpDelivery("crm", HttpHandler.model_validate(given))
            before = handler.batch_items
            if names:
                handler.prepare([people(*names)])
            return [before, handler.batch_items]

        teams = {"query": {"team": "{{ payload.team }}"}}
        assert taken(None) == [100, 100]
        assert taken({"query": {"q": "{{ queue }}"}}, "a1", "b1") == [100, 100]
        assert taken(teams, "a1", "a2", "a3") == [100, 100]
        assert taken(teams, "a1", "a2", "b1", "b2") == [100, 200]
        assert taken(teams, *[f"{team}{at}" for team in "abcdefghij" for at in range(4)])[1] == 800
        assert taken(teams, *"abcdefghij") == [100, 32]
        assert taken(teams, *"abcdefghij", items=1) == [1, 1]
        assert taken({"body": "{{ payload }}"}, "a1", "a2") == [1, 1]


class TestBadItems:
    async def test_they_fail_alone(self, server: FaultyServer) -> None:
        batch = a_slice(b'{"name":"ann"}', b'{"nam":1}', b"no json", b'{"name":"bo"}')
        request = {"item": {"n": "{{ payload.name }}"}}
        report = await sent(server, request, batch, damaged_slice())
        assert body(server.requests[0]) == [{"n": "ann"}, {"n": "bo"}]
        assert failed(report)[0, 0b10] == "unrenderable: item.n: payload.name is missing"
        assert failed(report)[0, 0b100].startswith("unrenderable: the payload is not JSON")
        assert failed(report)[1, 0b11].startswith("cannot be unpacked")
        assert all(one.failure.is_permanent for one in report.failures)
        assert not any(one.failure.blames_destination for one in report.failures)

    @pytest.mark.parametrize(
        "request_, says",
        [
            ({"headers": {"X-A": "{{ payload }}"}}, "headers.X-A: the value has characters"),
            ({"url": "/{{ payload }}"}, "an address cannot contain"),
            ({"method": "{{ payload }}"}, "is not one of POST, PUT"),
            ({"body": "{% for i in items %}{{ i.x }}{% endfor %}"}, "body: x is missing"),
        ],
    )
    async def test_in_every_place(
        self, server: FaultyServer, request_: dict[str, Any], says: str
    ) -> None:
        bad = {"/{{ payload }}": b'".."'}.get(request_.get("url", ""), b'"a\\r\\nb"')
        report = await sent(server, request_, a_slice(bad))
        assert says in failed(report)[0, 1]
        assert not server.requests

    async def test_nothing_is_sent_if_none_fits(self, server: FaultyServer) -> None:
        report = await sent(server, {"item": "{{ payload.a }}"}, a_slice(b"1", b"2"))
        assert [one.bits for one in report.failures] == [0b11]
        assert not server.requests


class TestAnswers:
    async def test_each_request_has_its_own(self, server: FaultyServer) -> None:
        server.will(answer("200 OK"), answer("400 Bad Request", b"bad team"), answer("200 OK"))
        request = {"url": "/{{ payload.team }}", "item": "{{ payload.name }}"}
        report = await sent(server, request, people("ann", "bo", "al", "cy"))
        assert [one.path for one in server.requests] == ["/a", "/b", "/c"]
        assert [(one.order, one.bits) for one in report.failures] == [(0, 0b10)]
        assert "bad team" in report.failures[0].failure.text

    async def test_refused_requests_are_halved_within_their_group(
        self, server: FaultyServer
    ) -> None:
        server.will(
            answer("422 Unprocessable"),
            answer("200 OK"),
            answer("422 Unprocessable"),
            answer("200 OK"),
        )
        request = {"query": {"team": "{{ payload.team }}"}, "item": "{{ payload.name }}"}
        report = await sent(server, request, people("ann", "al", "bo"))
        assert [body(one) for one in server.requests] == [["ann", "al"], ["ann"], ["al"], ["bo"]]
        assert [(one.order, one.bits) for one in report.failures] == [(0, 0b10)]

    async def test_the_rest_waits_if_the_destination_fails(self, server: FaultyServer) -> None:
        server.will(answer("200 OK"), answer("503 Unavailable"))
        request = {"url": "/{{ payload.team }}"}
        report = await sent(server, request, people("ann", "bo", "cy"))
        assert sum(one.bits for one in report.failures) == 0b110
        assert all(one.failure.blames_destination for one in report.failures)
        assert len(server.requests) == 2

    async def test_no_request_begins_after_the_timeout(
        self, server: FaultyServer, mock_clock: MockClock
    ) -> None:
        async def slow(conversation: Conversation) -> None:
            mock_clock.jump(6)
            await answer("200 OK")(conversation)

        server.will(slow, slow, slow)
        request = {"url": "/{{ payload.team }}"}
        report = await sent(server, request, people("ann", "bo", "cy", "co"), timeout="10s")
        assert report == Report(untried=((0, 0b1100),))
        assert len(server.requests) == 2

    async def test_a_split_that_takes_too_long_spends_an_attempt(
        self, server: FaultyServer, mock_clock: MockClock
    ) -> None:
        """Otherwise the same batch would be refused and split for ever."""

        async def slow(conversation: Conversation) -> None:
            mock_clock.jump(6)
            await answer("422 Unprocessable")(conversation)

        server.will(slow, slow, slow)
        report = await sent(server, {}, people("ann", "bo", "cy", "di"), timeout="10s")
        assert len(server.requests) == 2
        assert report.untried == ()
        assert sum(one.bits for one in report.failures) == 0b1111
        assert not any(one.failure.is_permanent for one in report.failures)


class TestSettings:
    @pytest.mark.parametrize(
        "given, says",
        [
            ({"request": {"item": "{{ nope }}"}}, "'nope' is not a name here"),
            ({"request": {"body": "{{ items"}}, "unexpected end of template"),
            ({"request": {"method": "FETCH"}}, "'FETCH' is not one of POST"),
            ({"request": {"url": "https://other/x"}}, "must begin with http://crm:80/"),
            ({"request": {"url": "http://crm:80.evil/x"}}, "must begin with http://crm:80/"),
            ({"request": {"url": "http://{{ key }}/x"}}, "must begin with http://crm:80/"),
            ({"request": {"headers": {"Host": "x"}}}, "Host is set by forebay"),
            ({"request": {"headers": {"X-A": "a\nb"}}}, "line break"),
            ({"request": {"headers": {"X-A": "1"}}, "headers": {"x-a": "2"}}, "x-a is given in"),
            ({"request": {"query": {"a": [1]}}}, "a: give a text or a number"),
            ({"request": {}, "encoding": "raw"}, "encoding has no effect with request"),
        ],
    )
    def test_mistakes_are_found_at_load(self, given: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says.replace("(", r"\(")):
            HttpHandler.model_validate({"url": "http://crm:80/c", **given})

    def test_an_address_on_the_same_host(self) -> None:
        for url in ("/x/{{ key }}", "http://crm:80/x", "http://crm:80/{{ key }}"):
            HttpHandler.model_validate({"url": "http://crm:80/c", "request": {"url": url}})


def test_items_that_were_not_sent_spend_no_attempt() -> None:
    from actors.config.queue import QueueSettings
    from actors.model.outcomes import Failure
    from actors.workers.retry import conclude

    piece = people("ann", "bo", "cy", "di", attempt=1)
    report = Report((ItemsFailed(0, 0b10, Failure("no")),), untried=((0, 0b1100),))
    (found,) = conclude([piece], report, QueueSettings(), 0, lambda: 0.5)
    assert found.delivered == 0b1
    assert [(one.bits, one.attempt) for one in found.again] == [(0b10, 2), (0b1100, 1)]
