"""Backpressure: what is in flight is bounded, and nothing waits forever."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.ingest.buffers import INBOX_BYTES, START_BYTES
from actors.ingest.connection import UNREAD_BYTES_MAX
from actors.ingest.requests import ANSWERS_AT_ONCE
from forebay import wire
from forebay.limits import CONTROL_BYTES_MAX
from forebay.wire import Kind
from tests.wire.harness import RawClient, Served, StubSpooler, make_run, push_frame, serve

settled = trio.testing.wait_all_tasks_blocked

SMALL: dict[str, Any] = {
    "max_run_bytes": 32 * 1024,
    "window_bytes": 64 * 1024,
    "inflight_bytes": 64 * 1024,
}


async def test_no_more_frames_are_in_flight_than_the_window_has(tmp_path: Path) -> None:
    async with serve(tmp_path, window_frames=3) as served:
        served.spooler.answer = None
        client = await served.greeted()
        await client.send(*(push_frame(sequence, make_run()) for sequence in range(1, 7)))
        await settled()
        assert len(served.spooler.appends) == 3
        served.spooler.release(count=2)
        await settled()
        assert len(served.spooler.appends) == 5
        served.spooler.release()
        await settled()
        served.spooler.release()
        assert {(await client.read())[1] for _ in range(6)} == {1, 2, 3, 4, 5, 6}


async def test_no_more_bytes_are_in_flight_than_the_window_has(tmp_path: Path) -> None:
    async with serve(tmp_path, **{**SMALL, "inflight_bytes": 2**20}) as served:
        served.spooler.answer = None
        client = await served.greeted()
        run = make_run(b"x" * 20_000)
        async with trio.open_nursery() as nursery:
            for sequence in range(1, 6):
                await client.push(sequence, run)
            await settled()
            assert len(served.spooler.appends) == 3
            assert served.in_flight_bytes == 3 * len(run)
            served.spooler.release(count=1)
            await settled()
            assert len(served.spooler.appends) == 4
            nursery.cancel_scope.cancel()


async def test_all_connections_together_stay_below_the_global_limit(tmp_path: Path) -> None:
    async with serve(tmp_path, **SMALL) as served:
        served.spooler.answer = None
        run = make_run(b"x" * 20_000)
        first, second = await served.greeted(), await served.greeted()
        await first.send(*(push_frame(sequence, run) for sequence in (1, 2, 3)))
        await settled()
        assert len(served.spooler.appends) == 3

        # With nothing in flight of its own the second may have one frame, and only one.
        await second.send(*(push_frame(sequence, run) for sequence in (1, 2)))
        await settled()
        assert len(served.spooler.appends) == 4

        # What the first gets answered makes room for the second, which sees it at once.
        served.spooler.release(count=2)
        await settled()
        assert len(served.spooler.appends) == 5
        assert served.spooler.appends[-1].answers is served.spooler.appends[-2].answers
        served.spooler.release()
        assert [(await second.read())[1] for _ in range(2)] == [1, 2]
        assert served.in_flight_bytes == 0


async def test_largest_frame_gets_in_though_others_hold_the_global_limit(tmp_path: Path) -> None:
    async with serve(tmp_path, **SMALL) as served:
        served.spooler.answer = None
        greedy = await served.greeted()
        await greedy.send(
            *(push_frame(sequence, make_run(b"x" * 21_000)) for sequence in (1, 2, 3))
        )
        await settled()
        late = await served.greeted()
        await late.push(1, make_run(b"y" * 32_000))
        await served.spooler.wait_for(4)


async def test_a_head_that_announces_much_costs_nothing(served: Served) -> None:
    idle = await served.greeted()
    await idle.send(wire.frame_head(Kind.CONTROL, 1, CONTROL_BYTES_MAX))
    await settled()
    assert served.in_flight_bytes == 0
    [connection] = served.ingest._connections
    assert connection._inbox.capacity == START_BYTES


LARGE: dict[str, Any] = {"max_run_bytes": "1Mi", "window_bytes": "2Mi", "inflight_bytes": "2Mi"}


LARGE_FRAME = push_frame(1, make_run(bytes(1_000_000)))


async def half_of_a_large_frame(client: RawClient) -> None:
    await client.send(LARGE_FRAME[:600_000])


async def test_half_a_frame_counts_and_is_given_back_when_its_client_vanishes(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, **LARGE) as served:
        slow = await served.greeted()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(half_of_a_large_frame, slow)
        await settled()
        assert 600_000 <= served.in_flight_bytes + INBOX_BYTES <= 1_200_000
        await slow.stream.aclose()
        await settled()
        assert served.in_flight_bytes == 0


async def test_large_frames_become_whole_one_by_one_where_the_limit_is_short(
    tmp_path: Path,
) -> None:
    """Ten begun frames would fill the limit and wait for each other for ever."""
    async with serve(tmp_path, **LARGE) as served:
        clients = [await served.greeted() for _ in range(10)]
        all_have_begun = trio.Event()

        async def push(client: RawClient) -> None:
            await client.send(LARGE_FRAME[:400_000])
            await all_have_begun.wait()
            await client.send(LARGE_FRAME[400_000:])

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(push, client)
            await settled(0.001)
            all_have_begun.set()
            for client in clients:
                assert (await client.read())[:2] == (Kind.ACK, 1)


async def test_half_a_large_frame_is_given_little_time_while_others_wait(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve(tmp_path, **LARGE, frame_timeout=3600) as served:
        slow = [await served.greeted() for _ in range(5)]
        other = await served.greeted()
        async with trio.open_nursery() as nursery:
            for client in slow:
                nursery.start_soon(half_of_a_large_frame, client)
            await settled(0.001)
            nursery.start_soon(other.send, LARGE_FRAME)
            assert (await other.read())[:2] == (Kind.ACK, 1)
            assert trio.current_time() < 60
            nursery.cancel_scope.cancel()


async def test_small_frames_pass_while_large_ones_fill_the_limit(tmp_path: Path) -> None:
    async with serve(tmp_path, **LARGE) as served:
        slow = [await served.greeted() for _ in range(5)]
        other = await served.greeted()
        async with trio.open_nursery() as nursery:
            for client in slow:
                nursery.start_soon(half_of_a_large_frame, client)
            await settled(0.001)
            for sequence in range(1, 21):
                await other.push(sequence, make_run(b"x" * 10_000))
                assert (await other.read())[:2] == (Kind.ACK, sequence)
            nursery.cancel_scope.cancel()


async def test_half_a_frame_that_times_out_is_cut_off(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve(tmp_path, **SMALL, frame_timeout=30) as served:
        slow = await served.greeted()
        await slow.send(push_frame(1, make_run(b"x" * 30_000))[:100])
        assert (await slow.read_last_words()).code == "TIMEOUT"
        assert trio.current_time() >= 30


async def test_client_that_pushes_without_reading_answers_loses_none(served: Served) -> None:
    """Far more answers than the socket holds: the daemon stops reading, and goes on later."""
    client = await served.greeted()
    runs = 25_000
    frames = b"".join(push_frame(sequence, make_run(b"")) for sequence in range(1, runs + 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, frames)
        await settled(0.001)
        assert len(served.spooler.appends) < runs
        answers = [(await client.read())[:2] for _ in range(runs)]
    assert answers == [(Kind.ACK, sequence) for sequence in range(1, runs + 1)]


async def test_answers_that_nobody_reads_are_bounded(served: Served) -> None:
    client = await served.greeted()
    pings = 60_000
    frames = b"".join(wire.frame(Kind.PING, 1, bytes(64)) for _ in range(pings))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, frames)
        await settled(0.001)
        [connection] = served.ingest._connections
        assert 0 < connection._outbox.waiting_bytes <= UNREAD_BYTES_MAX + 76
        for _ in range(pings):
            assert await client.read() == (Kind.PONG, 1, bytes(64))


class LargeResults:
    """A control whose every result has 3 MiB."""

    def __init__(self) -> None:
        self.performed = 0

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.performed += 1
        await trio.lowlevel.checkpoint()
        return {"payload": "x" * RESULT_BYTES}


RESULT_BYTES = 3 * 1024 * 1024
LARGE_ANSWERS_MAX = UNREAD_BYTES_MAX + ANSWERS_AT_ONCE * (RESULT_BYTES + 100)


def control_frame(sequence: int) -> bytes:
    return wire.document(Kind.CONTROL, sequence, {"op": "items.show"})


async def test_large_answers_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    control = LargeResults()
    async with serve(tmp_path, control=control) as served:
        client = await served.greeted()
        requests = 20
        await client.send(*(control_frame(number) for number in range(1, requests + 1)))
        await settled()
        [connection] = served.ingest._connections
        assert RESULT_BYTES < connection._outbox.waiting_bytes <= LARGE_ANSWERS_MAX
        assert control.performed <= ANSWERS_AT_ONCE
        answered = {(await client.read())[1] for _ in range(requests)}
        assert answered == set(range(1, requests + 1))


async def test_large_reports_that_nobody_reads_are_bounded(served: Served) -> None:
    served.spooler.report = {"queues": "x" * RESULT_BYTES}
    client = await served.greeted()
    await client.send(*(wire.frame(Kind.STATS, number) for number in range(1, 21)))
    await settled()
    [connection] = served.ingest._connections
    assert RESULT_BYTES < connection._outbox.waiting_bytes <= LARGE_ANSWERS_MAX
    assert {(await client.read())[1] for _ in range(20)} == set(range(1, 21))


async def test_large_answers_of_all_connections_are_bounded(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Those that do not read are cut off soon; one that reads has its answer after that."""
    settings: dict[str, Any] = {
        "max_run_bytes": "1Mi",
        "window_bytes": "8Mi",
        "inflight_bytes": "8Mi",
        "write_timeout": 3600,
    }
    async with serve(tmp_path, control=LargeResults(), **settings) as served:
        deaf = [await served.greeted() for _ in range(20)]
        for client in deaf:
            await client.send(control_frame(1))
            await settled()
        connections = served.ingest._connections
        unread = sum(connection._outbox.waiting_bytes for connection in connections)
        assert unread <= 8 * 1024 * 1024 + RESULT_BYTES + 100
        reader = await served.greeted()
        await reader.send(control_frame(1))
        assert (await reader.read())[:2] == (Kind.RESULT, 1)
        assert trio.current_time() < 600


async def test_pushes_pass_while_nobody_reads_large_answers(tmp_path: Path) -> None:
    async with serve(tmp_path, control=LargeResults()) as served:
        for _ in range(30):
            await (await served.greeted()).send(*(control_frame(number) for number in range(1, 9)))
        other = await served.greeted()
        for sequence in range(1, 21):
            await other.push(sequence, make_run())
            assert (await other.read())[:2] == (Kind.ACK, sequence)


async def test_one_client_that_does_not_read_does_not_hold_up_another(served: Served) -> None:
    deaf, other = await served.greeted(), await served.greeted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deaf.send, wire.frame(Kind.PING, 1, bytes(64)) * 60_000)
        await settled(0.001)
        await other.push(1, make_run())
        assert (await other.read())[:2] == (Kind.ACK, 1)
        nursery.cancel_scope.cancel()


async def test_spooler_with_a_full_inbox_stops_the_reading(tmp_path: Path) -> None:
    async with serve(tmp_path, spooler=StubSpooler(inbox_size=2)) as served:
        spooler = served.spooler
        client = await served.greeted()
        await settled()
        spooler.is_open = trio.Event()
        await client.push(1, make_run())
        await spooler.wait_for(1)
        run = make_run(b"x" * 100_000)
        async with trio.open_nursery() as nursery:
            frames = b"".join(push_frame(sequence, run) for sequence in range(2, 50))
            nursery.start_soon(client.send, frames)
            await settled(0.001)
            assert served.in_flight_bytes == 3 * len(run)
            spooler.is_open.set()
            assert {(await client.read())[1] for _ in range(49)} == set(range(1, 50))


async def test_memory_of_a_large_frame_is_given_back(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    client = await served.greeted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.push, 1, make_run(bytes(3_000_000)))
        await client.read()
    [connection] = served.ingest._connections
    assert connection._inbox.capacity > 3_000_000
    await trio.sleep(3)
    assert connection._inbox.capacity < 300_000
    await client.push(2, make_run(bytes(200_000)))
    assert (await client.read())[:2] == (Kind.ACK, 2)


@pytest.mark.parametrize("cut", [1, 12, 500])
async def test_client_that_vanishes_inside_a_frame_leaves_nothing(served: Served, cut: int) -> None:
    client = await served.greeted()
    await client.send(push_frame(1, make_run(b"x" * 1000))[:cut])
    await settled()
    await client.stream.aclose()
    await settled()
    assert served.in_flight_bytes == 0
    assert not served.ingest._connections


async def test_client_that_vanishes_before_its_answer_harms_nobody(served: Served) -> None:
    served.spooler.answer = None
    client, other = await served.greeted(), await served.greeted()
    for sequence in (1, 2, 3):
        await client.push(sequence, make_run())
    await other.push(1, make_run())
    await served.spooler.wait_for(4)
    await client.stream.aclose()
    await settled()
    served.spooler.release(count=2)
    await settled()
    served.spooler.release()
    assert (await other.read())[:2] == (Kind.ACK, 1)
    await settled()
    assert served.in_flight_bytes == 0
    assert len(served.ingest._connections) == 1


async def test_client_that_vanishes_with_answers_unread_harms_nobody(served: Served) -> None:
    """The kernel tells the daemon of it by an error, not by the end of the stream."""
    client, other = await served.greeted(), await served.greeted()
    await client.send(wire.frame(Kind.PING, 1))
    await settled()
    await client.stream.aclose()
    await settled()
    await other.push(1, make_run())
    assert (await other.read())[:2] == (Kind.ACK, 1)
    assert len(served.ingest._connections) == 1


async def test_client_that_vanishes_while_its_answers_wait_harms_nobody(served: Served) -> None:
    client, other = await served.greeted(), await served.greeted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, wire.frame(Kind.PING, 1, bytes(64)) * 60_000)
        await settled()
        nursery.cancel_scope.cancel()
    await client.stream.aclose()
    await settled()
    await other.push(1, make_run())
    assert (await other.read())[:2] == (Kind.ACK, 1)
    assert len(served.ingest._connections) == 1


async def test_client_with_many_small_requests_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.ingest.connection.FRAMES_AT_ONCE", 10)
    turns = 0
    seen = set()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    def known_queue(_: str) -> bool:
        seen.add(turns)
        return True

    spooler = StubSpooler(inbox_size=1000)
    async with serve(tmp_path, spooler=spooler, known_queue=known_queue) as served:
        client = await served.greeted()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await client.send(b"".join(push_frame(number, make_run()) for number in range(1, 301)))
            await spooler.wait_for(300)
            nursery.cancel_scope.cancel()
    assert len(seen) >= 10


async def test_answers_after_the_ingest_was_cancelled_go_nowhere(tmp_path: Path) -> None:
    spooler = StubSpooler()
    spooler.answer = None
    async with serve(tmp_path, spooler=spooler) as served:
        client = await served.greeted()
        await client.push(1, make_run())
        await spooler.wait_for(1)
    spooler.release()
    assert served.in_flight_bytes == 0
