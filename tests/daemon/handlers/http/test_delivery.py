"""What becomes of a batch: all of it, each item, or the parts of one that was too large."""

import json
from collections.abc import Callable
from email.utils import formatdate
from itertools import chain

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.outcomes import Failure, Report
from actors.model.slices import Slice, indexes
from daemon.handlers.http.sender import SPLITS_MAX
from tests.daemon.handlers.http.batches import a_slice, damaged_slice, sending
from tests.daemon.handlers.http.faulty import (
    Act,
    Conversation,
    FaultyServer,
    answer,
    says_and_closes,
    says_and_hangs,
)


def named(report: Report) -> dict[tuple[int, int], Failure]:
    """The failure of each item that a report names, by slice and index; none is named twice."""
    found: dict[tuple[int, int], Failure] = {}
    for failed in report.failures:
        for index in indexes(failed.bits):
            assert (failed.order, index) not in found
            found[failed.order, index] = failed.failure
    return found


def payloads(conversation: Conversation) -> list[str]:
    lines = conversation.request.body.splitlines()
    return [json.loads(line)["payload"] for line in lines]


class TestWholeBatches:
    async def test_a_refusal_is_a_permanent_failure_with_its_reason(
        self, server: FaultyServer
    ) -> None:
        server.will(answer("422 Unprocessable", b"no such customer", Content_Type="text/plain"))
        async with sending(server.url()) as opened:
            failure = await opened.failure(a_slice(b"1"))
        assert failure.text == f"422 from http://127.0.0.1:{server.port}: no such customer"
        assert (failure.is_permanent, failure.blames_destination) == (True, False)

    async def test_a_redirect_is_not_followed(self, server: FaultyServer) -> None:
        server.will(answer("308 Moved", Location="https://elsewhere.example/"))
        async with sending(server.url()) as opened:
            failure = await opened.failure(a_slice(b"1"))
        assert failure.is_permanent
        assert "redirects to https://elsewhere.example/" in failure.text
        assert len(server.requests) == 1

    @pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Unavailable"])
    async def test_a_pause_is_asked_for_in_seconds(self, server: FaultyServer, status: str) -> None:
        server.will(answer(status, Retry_After="17"))
        async with sending(server.url()) as opened:
            failure = await opened.failure(a_slice(b"1"))
        assert failure.retry_after_s == 17
        assert (failure.is_permanent, failure.blames_destination) == (False, True)

    async def test_a_pause_is_asked_for_with_a_date(self, server: FaultyServer) -> None:
        server.will(answer("429 Slow Down", Retry_After=formatdate(2**33, usegmt=True)))
        async with sending(server.url()) as opened:
            assert (await opened.failure(a_slice(b"1"))).retry_after_s == 86400

    async def test_what_cannot_be_unpacked_is_named_even_if_the_rest_fails(
        self, server: FaultyServer
    ) -> None:
        server.will(answer("500 Oh"))
        async with sending(server.url()) as opened:
            found = named(await opened.send(a_slice(b"1"), damaged_slice()))
        assert {place: one.is_permanent for place, one in found.items()} == {
            (0, 0): False,
            (1, 0): True,
            (1, 1): True,
        }


class TestItemResults:
    @staticmethod
    def by_payload(status: Callable[[str], object]) -> Act:
        """Answers with a result for each item that has something to say, last first."""

        async def act(conversation: Conversation) -> None:
            items = map(json.loads, conversation.request.body.splitlines())
            found = [
                {"id": item["id"], "status": status(item["payload"]), "error": item["payload"]}
                for item in items
                if status(item["payload"]) is not None
            ]
            await answer("207 Multi", json.dumps({"results": found[::-1]}).encode())(conversation)

        return act

    async def test_each_item_has_its_own(self, server: FaultyServer) -> None:
        server.will(self.by_payload({"ok": 200, "busy": 503, "bad": 400}.get))
        batch = [
            a_slice(b"unknown", b"bad", b"busy", b"bad", bits=0b1110),
            a_slice(b"ok", b"unsaid"),
            a_slice(b"busy"),
        ]
        async with sending(server.url()) as opened:
            report = await opened.send(*batch)
        found = named(report)
        assert {place: (one.status, one.text) for place, one in found.items()} == {
            (0, 1): (400, "bad"),
            (0, 2): (503, "busy"),
            (0, 3): (400, "bad"),
            (2, 0): (503, "busy"),
        }
        assert not any(one.blames_destination for one in found.values())
        # Items with the same failure are named together.
        assert len(report.failures) == 3

    async def test_they_are_not_looked_for_unless_wanted(self, server: FaultyServer) -> None:
        server.will(self.by_payload(lambda _payload: 500))
        async with sending(server.url(), item_results=False) as opened:
            await opened.delivers(a_slice(b"1"))

    async def test_places_hold_beside_slices_that_cannot_be_unpacked(
        self, server: FaultyServer
    ) -> None:
        server.will(self.by_payload({"bad": 400}.get))
        async with sending(server.url()) as opened:
            report = await opened.send(damaged_slice(), a_slice(b"ok", b"bad"))
        assert set(named(report)) == {(0, 0), (0, 1), (1, 1)}

    async def test_an_answer_too_long_for_them_is_logged_once(self, server: FaultyServer) -> None:
        body = b" " * 5000 + b'[{"status":500}]'
        server.will(answer("200 OK", body), answer("200 OK", body))
        async with sending(server.url(), answer_bytes_max="1Ki") as opened:
            with structlog.testing.capture_logs() as logs:
                await opened.delivers(a_slice(b"1"))
                await opened.delivers(a_slice(b"1"))
        assert [entry["event"] for entry in logs] == ["http.answer_too_long"]


class TestRefused:
    """The server refuses every request that has a bad payload."""

    def refuses(self, server: FaultyServer, status: str = "422 Invalid") -> list[list[str]]:
        """What it took."""
        taken: list[list[str]] = []

        async def act(conversation: Conversation) -> None:
            server.acts.append(act)
            found = payloads(conversation)
            if any(one.startswith("bad") for one in found):
                await answer(status, b"a field is wrong")(conversation)
                return
            taken.append(found)
            await answer("200 OK")(conversation)

        server.will(act)
        return taken

    @pytest.mark.parametrize("status", ["400 Bad", "409 Conflict", "422 Invalid"])
    async def test_only_the_bad_items_are_refused(self, server: FaultyServer, status: str) -> None:
        taken = self.refuses(server, status)
        async with sending(server.url()) as opened:
            report = await opened.send(a_slice(b"0", b"1", b"bad"), a_slice(b"2", b"3", b"4"))
        assert sorted(chain.from_iterable(taken)) == ["0", "1", "2", "3", "4"]
        ((place, failure),) = named(report).items()
        assert (place, failure.status) == ((0, 2), int(status[:3]))
        assert (failure.is_permanent, failure.blames_destination) == (True, False)

    async def test_a_batch_is_refused_as_a_whole_if_that_is_wanted(
        self, server: FaultyServer
    ) -> None:
        self.refuses(server)
        async with sending(server.url(), on_refused="fail") as opened:
            failure = await opened.failure(a_slice(b"0", b"bad", b"2"))
        assert (failure.status, failure.is_permanent) == (422, True)
        assert len(server.requests) == 1

    async def test_other_refusals_concern_the_whole_batch(self, server: FaultyServer) -> None:
        self.refuses(server, "401 Unauthorized")
        async with sending(server.url()) as opened:
            await opened.failure(a_slice(b"0", b"bad", b"2"))
        assert len(server.requests) == 1

    @pytest.mark.parametrize("status", ["400 Bad Request", "403 Forbidden"])
    async def test_an_outage_concerns_the_destination_and_is_not_split(
        self, server: FaultyServer, status: str
    ) -> None:
        said = b'[{"errorCode": "REQUEST_LIMIT_EXCEEDED"}]'
        server.will(answer(status, said, Content_Type="application/json"))
        rule = "body[0].errorCode == 'REQUEST_LIMIT_EXCEEDED'"
        async with sending(server.url(), outage=rule) as opened:
            failure = await opened.failure(a_slice(b"0", b"1", b"2"))
        assert (failure.is_permanent, failure.blames_destination) == (False, True)
        assert len(server.requests) == 1

    async def test_extra_requests_are_bounded_and_the_rest_waits(
        self, server: FaultyServer
    ) -> None:
        taken = self.refuses(server)
        many = [b"bad" if number % 2 else b"%d" % number for number in range(200)]
        async with sending(server.url()) as opened:
            found = named(await opened.send(a_slice(*many)))
        assert len(server.requests) <= 2 * SPLITS_MAX + 2
        permanent = {place[1] for place, one in found.items() if one.is_permanent}
        waiting = {place[1] for place, one in found.items() if not one.is_permanent}
        assert permanent
        assert all(many[at] == b"bad" for at in permanent)
        assert len(permanent) + len(waiting) + len(list(chain.from_iterable(taken))) == len(many)


class TestSuspect:
    async def test_an_answer_that_seems_to_fail_is_said_once(self, server: FaultyServer) -> None:
        body = b'{"errors": [{"type": "invalid", "index": 0}]}'
        server.will(*(answer("201 Created", body, Content_Type="application/json"),) * 2)
        async with sending(server.url()) as opened:
            with structlog.testing.capture_logs() as logs:
                assert await opened.send(a_slice(b"1")) == Report(is_suspect=True)
                assert await opened.send(a_slice(b"1")) == Report(is_suspect=True)
        assert [entry["event"] for entry in logs] == ["http.answer_suspect"]

    async def test_an_answer_of_another_form_fails_the_batch(self, server: FaultyServer) -> None:
        server.will(answer("200 OK", b'{"accepted": 2}'))
        async with sending(server.url(), answer={"ok": "success"}) as opened:
            with structlog.testing.capture_logs() as logs:
                failure = await opened.failure(a_slice(b"1", b"2"))
        assert (failure.blames_destination, failure.is_suspect) == (True, True)
        assert [(one["event"], one["answer"]) for one in logs] == [
            ("http.answer_suspect", '{"accepted": 2}')
        ]
        assert failure.text.startswith("200, but answer.items finds no list for 2 items")


class TestTooLarge:
    """The server takes requests of a few items, and answers 413 to any that has more."""

    def takes(
        self, server: FaultyServer, items_max: int, then: dict[str, Act] | None = None
    ) -> list[list[str]]:
        """What it took. `then` is what it does to a request that has a payload of that name."""
        taken: list[list[str]] = []

        async def act(conversation: Conversation) -> None:
            server.acts.append(act)
            found = payloads(conversation)
            if len(found) > items_max or "huge" in found:
                await answer("413 Too Large", b"at most a few")(conversation)
                return
            for name, other in (then or {}).items():
                if name in found:
                    await other(conversation)
                    return
            taken.append(found)
            await answer("200 OK")(conversation)

        server.will(act)
        return taken

    @staticmethod
    def batch() -> list[Slice]:
        return [
            a_slice(b"0", b"gone", b"1", b"2", bits=0b1101),
            damaged_slice(),
            a_slice(b"3"),
            a_slice(b"4", b"5", b"6"),
        ]

    async def test_a_batch_is_sent_in_halves(self, server: FaultyServer) -> None:
        taken = self.takes(server, 2)
        async with sending(server.url()) as opened:
            report = await opened.send(*self.batch())
        assert list(chain.from_iterable(taken)) == ["0", "1", "2", "3", "4", "5", "6"]
        assert [] not in taken
        assert set(named(report)) == {(1, 0), (1, 1)}
        assert server.connections == 1

    async def test_only_the_item_that_is_too_large_alone_is_refused(
        self, server: FaultyServer
    ) -> None:
        taken = self.takes(server, 10)
        async with sending(server.url()) as opened:
            report = await opened.send(a_slice(b"0", b"1"), a_slice(b"2", b"huge", b"3"))
        assert list(chain.from_iterable(taken)) == ["0", "1", "2", "3"]
        ((place, failure),) = named(report).items()
        assert place == (1, 1)
        assert failure.status == 413
        assert (failure.is_permanent, failure.blames_destination) == (True, False)
        assert failure.text.endswith(": at most a few")

    async def test_a_single_item_that_is_too_large_is_refused(self, server: FaultyServer) -> None:
        self.takes(server, 10)
        async with sending(server.url()) as opened:
            failure = await opened.failure(a_slice(b"huge"))
        assert (failure.status, failure.is_permanent) == (413, True)
        assert len(server.requests) == 1

    async def test_parts_have_keys_and_counts_of_their_own(self, server: FaultyServer) -> None:
        self.takes(server, 1)
        async with sending(server.url(), compression="none") as opened:
            assert await opened.send(a_slice(b"0", b"1")) == Report()
        assert [one.headers["x-forebay-items"] for one in server.requests] == ["2", "1", "1"]
        assert len({one.headers["idempotency-key"] for one in server.requests}) == 3

    async def test_results_of_parts_name_the_right_items(self, server: FaultyServer) -> None:
        bad = answer("200 OK", b'[{"status":400},{"status":200}]')
        self.takes(server, 2, {"4": bad})
        async with sending(server.url()) as opened:
            found = named(await opened.send(*self.batch()))
        first_of_its_part = {"0": (0, 0), "1": (0, 2), "3": (2, 0), "4": (3, 0), "5": (3, 1)}
        refused = [place for place, one in found.items() if one.status == 400]
        assert refused in [[first_of_its_part["4"]], [first_of_its_part["3"]]]

    async def test_a_refused_part_does_not_keep_the_others_back(self, server: FaultyServer) -> None:
        taken = self.takes(server, 1, {"1": answer("400 Bad")})
        async with sending(server.url()) as opened:
            found = named(await opened.send(a_slice(b"0", b"1", b"2", b"3")))
        assert taken == [["0"], ["2"], ["3"]]
        assert {place: one.status for place, one in found.items()} == {(0, 1): 400}

    @pytest.mark.parametrize(
        "trouble, status",
        [(answer("429 Slow", Retry_After="9"), 429), (says_and_closes(), None)],
    )
    async def test_trouble_keeps_the_rest_back_and_what_was_taken_stays_so(
        self, server: FaultyServer, trouble: Act, status: int | None
    ) -> None:
        # A connection that is lost before the answer is tried once more, and lost again.
        taken = self.takes(server, 1, {"1": trouble})
        async with sending(server.url()) as opened:
            found = named(await opened.send(a_slice(b"0", b"1"), a_slice(b"2", b"3")))
        assert taken == [["0"]]
        assert set(found) == {(0, 1), (1, 0), (1, 1)}
        assert {one.status for one in found.values()} == {status}
        assert all(one.blames_destination and not one.is_permanent for one in found.values())

    async def test_all_parts_share_one_deadline(
        self, server: FaultyServer, mock_clock: MockClock
    ) -> None:
        hanging = trio.Event()

        async def hang(conversation: Conversation) -> None:
            hanging.set()
            await says_and_hangs()(conversation)

        taken = self.takes(server, 1, {"1": hang})
        async with sending(server.url(), timeout="10s") as opened, trio.open_nursery() as nursery:

            async def send() -> None:
                found = named(await opened.send(a_slice(b"0", b"1", b"2", b"3")))
                assert set(found) == {(0, 1), (0, 2), (0, 3)}
                assert all("took longer than 10s" in one.text for one in found.values())

            nursery.start_soon(send)
            await hanging.wait()
            await wait_all_tasks_blocked(0.01)
            mock_clock.jump(10.1)
        assert taken == [["0"]]
