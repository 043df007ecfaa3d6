"""What goes wrong between a sender and a destination, on real sockets."""

import random
import re
import socket

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.outcomes import Failure
from actors.ports.handler import DeliveryFailed
from tests.daemon.handlers.http.batches import a_slice, sending
from tests.daemon.handlers.http.faulty import (
    OK,
    Conversation,
    FaultyServer,
    answer,
    says,
    says_and_closes,
    says_and_hangs,
    says_and_resets,
    streams,
)

HANG_S = 60
"""Nothing is measured by it: what hangs should fail the test."""
ITEM = a_slice(b"payload")
LARGE = a_slice(*[b"x" * 1000] * 1000, headers={})
"""More than the buffers of two sockets hold at first."""


def blamed(failure: Failure, text: str) -> None:
    assert re.search(text, failure.text), failure.text
    assert (failure.is_permanent, failure.blames_destination) == (False, True)
    assert (failure.status, failure.retry_after_s) == (None, None)


class TestKeptConnections:
    async def test_one_connection_serves_all_requests(self, server: FaultyServer) -> None:
        async with sending(server.url()) as opened:
            for _ in range(5):
                await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1] * 5

    async def test_sends_at_a_time_have_connections_of_their_own(
        self, server: FaultyServer
    ) -> None:
        async with sending(server.url()) as opened:
            for _ in range(2):
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(opened.delivers, ITEM)
        assert len(server.requests) == 6
        assert server.connections <= 3

    async def test_a_connection_that_the_server_closed_meanwhile_is_replaced(
        self, server: FaultyServer
    ) -> None:
        server.will(says_and_closes(OK))
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            await server.closed.wait()
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 2]

    async def test_an_answer_that_says_close_ends_the_connection(
        self, server: FaultyServer
    ) -> None:
        server.will(answer("200 OK", Connection="close"))
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 2]

    @pytest.mark.parametrize("end", [says_and_closes(), says_and_resets()])
    async def test_a_used_connection_lost_before_the_answer_is_tried_once_more(
        self, server: FaultyServer, end: object
    ) -> None:
        server.will(says(OK), end)  # type: ignore[arg-type]
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 1, 2]
        assert len({request.headers["idempotency-key"] for request in server.requests}) == 1

    async def test_it_is_tried_once_more_and_no_more(self, server: FaultyServer) -> None:
        server.will(says(OK), says_and_closes(), says_and_closes())
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            blamed(await opened.failure(ITEM), "closed the connection and gave no answer")
            assert len(server.requests) == 3
            await opened.delivers(ITEM)

    async def test_a_used_connection_lost_amid_the_answer_is_a_failure(
        self, server: FaultyServer
    ) -> None:
        server.will(says(OK), says_and_closes(b"HTTP/1.1 2"))
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            blamed(await opened.failure(ITEM), "in the middle of its answer")
        assert len(server.requests) == 2

    async def test_what_a_server_says_unasked_is_no_answer_to_the_next_request(
        self, server: FaultyServer
    ) -> None:
        late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
        server.will(says(OK), says(OK), says(OK + late))
        async with sending(server.url()) as opened:
            for _ in range(4):
                await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 1, 1, 2]

    async def test_what_a_server_says_to_an_idle_connection_is_no_answer_either(
        self, server: FaultyServer
    ) -> None:
        said = trio.Event()

        async def act(conversation: Conversation) -> None:
            await conversation.say(OK)
            await idle.wait()
            late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
            await conversation.say_and_be_heard(late)
            said.set()

        idle = trio.Event()
        server.will(act)
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            idle.set()
            await said.wait()
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 2]


class TestBrokenAnswers:
    @pytest.mark.parametrize(
        "act, text",
        [
            (says_and_closes(), r"127.0.0.1:\d+ closed the connection and gave no answer"),
            (says_and_resets(), r"127.0.0.1:\d+ broke the connection .*reset.* and gave no answer"),
            (says_and_closes(b"HTTP/1.1 200 O"), "closed the connection in the middle"),
            (
                says_and_closes(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"),
                "closed the connection in the middle of its answer",
            ),
            (
                says_and_closes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123"),
                "closed the connection in the middle of its answer",
            ),
            (
                says_and_resets(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"),
                "broke the connection .*reset.* in the middle of its answer",
            ),
            (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "does not answer in HTTP: "),
            (says(b"\x00\xff" * 100_000), "does not answer in HTTP: "),
            (says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000), "does not answer in HTTP: "),
            (says(b"HTTP/1.1 101 Switching\r\nUpgrade: ws\r\n\r\n"), "does not answer in HTTP: "),
            (
                says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
                "does not answer in HTTP: ",
            ),
        ],
    )
    async def test_blame_the_destination_and_leave_the_sender_usable(
        self, server: FaultyServer, act: object, text: str
    ) -> None:
        server.will(act)  # type: ignore[arg-type]
        async with sending(server.url()) as opened:
            failure = await opened.failure(ITEM)
            blamed(failure, text)
            assert len(failure.text) < 400
            assert len(server.requests) == 1
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 2]

    async def test_a_connection_that_is_reset_at_once(self, server: FaultyServer) -> None:
        server.resets_new_connections = True
        async with sending(server.url()) as opened:
            failure = await opened.failure(ITEM)
            blamed(failure, "broke the connection .* and gave no answer|no connection to")
            assert server.connections == 1
            server.resets_new_connections = False
            await opened.delivers(ITEM)


class TestNoConnection:
    async def test_refused(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with sending(f"http://127.0.0.1:{port}/") as opened:
            failure = await opened.failure(ITEM)
        blamed(failure, rf"^connection refused by 127\.0\.0\.1:{port}$")

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "a..b"])
    async def test_a_name_that_nobody_knows(self, host: str) -> None:
        async with sending(f"http://{host}/") as opened:
            blamed(await opened.failure(ITEM), f"the name {host} cannot be resolved: .")


class TestPatience:
    @pytest.mark.parametrize(
        "said, doing",
        [
            (b"", "waiting for the answer"),
            (b"HTTP/1.1 200 OK\r\nX-Slo", "waiting for the answer"),
            (b"HTTP/1.1 100 Continue\r\n\r\n", "waiting for the answer"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "reading the answer"),
        ],
    )
    async def test_ends_with_the_timeout(
        self, server: FaultyServer, mock_clock: MockClock, said: bytes, doing: str
    ) -> None:
        server.will(says_and_hangs(said))
        async with sending(server.url(), timeout="10s") as opened:
            async with trio.open_nursery() as nursery:

                async def fails() -> None:
                    failure = await opened.failure(ITEM)
                    blamed(failure, rf"^127\.0\.0\.1:\d+: {doing} took longer than 10s$")
                    assert trio.current_time() - begun >= 10

                begun = trio.current_time()
                nursery.start_soon(fails)
                await server.acting.wait()
                await wait_all_tasks_blocked(0.02)
                mock_clock.jump(9.9)
                await wait_all_tasks_blocked(0.01)
                assert nursery.child_tasks
                mock_clock.jump(0.2)
            await opened.delivers(ITEM)

    async def test_a_request_that_is_not_read_ends_with_the_timeout(
        self, server: FaultyServer, mock_clock: MockClock
    ) -> None:
        server.reads_bodies = False
        server.will(says_and_hangs())
        huge = a_slice(*[b"x" * 10_000] * 1600)
        async with sending(server.url(), timeout="10s") as opened, trio.open_nursery() as nursery:

            async def fails() -> None:
                blamed(await opened.failure(huge), "sending the request took longer than 10s")

            nursery.start_soon(fails)
            await server.acting.wait()
            await wait_all_tasks_blocked(0.02)
            mock_clock.jump(11)

    async def test_a_cancelled_send_leaves_the_sender_usable(self, server: FaultyServer) -> None:
        server.will(says(OK), says_and_hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"))
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            server.acting = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(opened.send, ITEM)
                await server.acting.wait()
                nursery.cancel_scope.cancel()
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 1, 2]

    async def test_a_cancelled_large_send_leaves_the_sender_usable(
        self, server: FaultyServer
    ) -> None:
        server.reads_bodies = False
        server.will(says_and_hangs())
        async with sending(server.url()) as opened:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(opened.send, LARGE)
                await server.acting.wait()
                nursery.cancel_scope.cancel()
            server.reads_bodies = True
            await opened.delivers(LARGE)
        assert server.connections == 2

    async def test_closing_a_sender_lets_go_of_its_connection(self, server: FaultyServer) -> None:
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
        with trio.fail_after(HANG_S):
            await server.closed.wait()


class TestAnswers:
    async def test_informational_answers_are_passed_over(self, server: FaultyServer) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        server.will(says(b"HTTP/1.1 100 Continue\r\n\r\n" + hints * 3 + OK))
        async with sending(server.url()) as opened:
            await opened.delivers(ITEM)
            await opened.delivers(ITEM)
        assert server.connections == 1

    async def test_a_chunked_answer_is_read_and_the_connection_kept(
        self, server: FaultyServer
    ) -> None:
        head = b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n"
        server.will(says(head + b"3\r\nno \r\n4;x=y\r\nname\r\n0\r\nTrailer: 1\r\n\r\n"))
        async with sending(server.url()) as opened:
            assert (await opened.failure(ITEM)).text.endswith(": no name")
            await opened.delivers(ITEM)
        assert server.connections == 1

    async def test_an_answer_that_ends_with_the_connection_is_read(
        self, server: FaultyServer
    ) -> None:
        server.will(says_and_closes(b"HTTP/1.0 500 Oh\r\n\r\nall is lost"))
        async with sending(server.url()) as opened:
            assert (await opened.failure(ITEM)).text.endswith(": all is lost")
            await opened.delivers(ITEM)

    @pytest.mark.parametrize("status, is_taken", [(b"200 OK", True), (b"500 Oh", False)])
    @pytest.mark.parametrize(
        "framing, block",
        [
            (b"Content-Length: 2147483648", b"x" * 65536),
            (b"Transfer-Encoding: chunked", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
            (b"Connection: close", b"x" * 65536),
        ],
    )
    async def test_an_endless_answer_is_not_read(
        self, server: FaultyServer, status: bytes, is_taken: bool, framing: bytes, block: bytes
    ) -> None:
        sent: list[int] = []
        server.will(streams(b"HTTP/1.1 " + status + b"\r\n" + framing + b"\r\n\r\n", block, sent))
        async with sending(server.url(), answer_bytes_max="64Ki") as opened:
            if is_taken:
                await opened.delivers(ITEM)
            else:
                assert (await opened.failure(ITEM)).status == 500
            await opened.delivers(ITEM)
        # What it could send is what the buffers of two sockets hold.
        assert sum(sent) < 32 * 1024 * 1024
        assert [request.connection for request in server.requests] == [1, 2]

    async def test_an_answer_to_a_large_request_that_was_not_read_is_heard(
        self, server: FaultyServer
    ) -> None:
        server.reads_bodies = False
        server.will(says_and_hangs(b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nwho"))
        huge = a_slice(*[b"x" * 10_000] * 1600)
        async with sending(server.url()) as opened:
            with trio.fail_after(HANG_S):
                assert (await opened.failure(huge)).text.endswith(": who")
            server.reads_bodies = True
            await opened.delivers(ITEM)
        assert [request.connection for request in server.requests] == [1, 2]

    async def test_a_large_request_is_read_to_its_end(self, server: FaultyServer) -> None:
        async with sending(server.url()) as opened:
            await opened.delivers(LARGE)
            await opened.delivers(LARGE)
        assert [len(request.body) > 1_000_000 for request in server.requests] == [True, True]
        assert server.connections == 1


async def test_whatever_is_answered_a_send_reports_or_fails(server: FaultyServer) -> None:
    chance = random.Random(11)
    whole = b"HTTP/1.1 207 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n3\r\n[1]\r\n0\r\n\r\n"
    failed = 0
    async with sending(server.url()) as opened:
        for _ in range(300):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] = chance.choice(b"\0\r\n :019f\xff")
            server.will(says_and_closes(bytes(data)))
            try:
                await opened.send(ITEM)
            except DeliveryFailed:
                failed += 1
    assert 100 < failed < 300
