"""Which requests of a batch wait for the queue's pace; and the timeout meanwhile."""

import trio
from trio.testing import MockClock

from actors.model.outcomes import Report
from tests.daemon.handlers.http.batches import a_slice, sending_at
from tests.daemon.handlers.http.faulty import FaultyServer, answer, says_and_closes

FOUR = a_slice(b"a", b"b", b"c", b"d")


class Pace:
    """Counts further requests; the clock jumps on with each of them."""

    def __init__(self, clock: MockClock, takes_s: float = 0.0) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self.further = 0

    async def request(self) -> None:
        self.further += 1
        self._clock.jump(self._takes_s)
        await trio.lowlevel.checkpoint()


async def test_one_request_needs_no_more_than_the_worker_has(
    server: FaultyServer, mock_clock: MockClock
) -> None:
    pace = Pace(mock_clock)
    async with sending_at(pace, server.url()) as opened:
        await opened.delivers(FOUR)
        await opened.delivers(FOUR)
    assert (len(server.requests), pace.further) == (2, 0)


async def test_every_further_request_of_a_refused_batch_waits(
    server: FaultyServer, mock_clock: MockClock
) -> None:
    server.will(*[answer("400 Bad Request")] * 3)
    pace = Pace(mock_clock)
    async with sending_at(pace, server.url()) as opened:
        report = await opened.send(FOUR)
    assert [failed.bits for failed in report.failures] == [0b1]
    # All, the first half, a, b, the second half.
    assert (len(server.requests), pace.further) == (5, 4)


async def test_request_that_is_sent_again_on_a_new_connection_waits(
    server: FaultyServer, mock_clock: MockClock
) -> None:
    pace = Pace(mock_clock)
    async with sending_at(pace, server.url()) as opened:
        await opened.delivers(FOUR)
        server.will(says_and_closes())
        await opened.delivers(FOUR)
    assert (len(server.requests), pace.further) == (3, 1)


async def test_waiting_does_not_count_against_the_timeout(
    server: FaultyServer, mock_clock: MockClock
) -> None:
    server.will(answer("413 Too Large"))
    pace = Pace(mock_clock, takes_s=3600)
    async with sending_at(pace, server.url(), timeout="10s") as opened:
        assert await opened.send(FOUR) == Report()
    assert (len(server.requests), pace.further) == (3, 2)
