"""The blocking client in a thread, against a real ingest on a real socket."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio

import forebay
from actors.ingest.ingest import Ingest
from forebay.client import Client, connect
from forebay.errors import BadRun, Refused, Unreachable
from forebay.run import Run, encode_run, read_run
from forebay.wire import Outcome
from tests.wire.harness import REPORT, Served, StubSpooler, serve

T = TypeVar("T")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(tmp_path) as served:
        yield served


async def with_client(served: Served, work: Callable[[Client], T]) -> T:
    """Connects in a thread, does the work there, and closes."""

    def run() -> T:
        with connect(served.path, timeout=120) as client:
            return work(client)

    return await trio.to_thread.run_sync(run, abandon_on_cancel=True)


def runs_of(spooler: StubSpooler) -> list[Run]:
    return [read_run(append.data) for append in spooler.appends]


def payloads_of(spooler: StubSpooler) -> list[bytes]:
    return [payload for run in runs_of(spooler) for payload in run.payloads()]


def cut_connections(served: Served) -> None:
    """As if the daemon had died: all connections end without a word."""
    for connection in served.ingest._connections:
        connection._whole.cancel()


async def test_items_arrive_in_order_in_runs_of_the_size_asked_for(served: Served) -> None:
    items = [b"%d" % index for index in range(2500)]
    result = await with_client(served, lambda client: client.push("crm", items, run_items=1000))
    assert result == (2500, 3, 0)
    assert [run.head.count for run in runs_of(served.spooler)] == [1000, 1000, 500]
    assert payloads_of(served.spooler) == items


async def test_everything_said_about_a_push_is_in_its_runs(served: Served) -> None:
    def push(client: Client) -> object:
        return client.push(
            "crm",
            ["ä", b"b"],
            keys=["k", None],
            priority=3,
            due_ms=1_900_000_000_000,
            flow="nightly",
            action="upsert",
            headers={"trace": "abc"},
        )

    await with_client(served, push)
    [run] = runs_of(served.spooler)
    assert run.payloads() == ["ä".encode(), b"b"]
    assert run.keys() == [b"k", b""]
    head = run.head
    assert (head.queue, head.priority, head.due_ms) == ("crm", 3, 1_900_000_000_000)
    assert (head.flow, head.action, head.headers()) == ("nightly", "upsert", {"trace": "abc"})


async def test_no_items_make_no_runs(served: Served) -> None:
    assert await with_client(served, lambda client: client.push("crm", [])) == (0, 0, 0)
    assert served.spooler.appends == []


async def test_push_returns_only_when_everything_is_acknowledged(served: Served) -> None:
    served.spooler.answer = None
    done = trio.Event()

    async def push() -> None:
        await with_client(served, lambda client: client.push("crm", ["1", "2"], run_items=1))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(push)
        await served.spooler.wait_for(2)
        served.spooler.release(count=1)
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        served.spooler.release()
        await done.wait()


async def test_no_more_runs_are_in_flight_than_the_window_has(served: Served) -> None:
    served.spooler.answer = None
    most = 0

    async with trio.open_nursery() as nursery:
        items = [str(index) for index in range(30)]
        nursery.start_soon(
            with_client, served, lambda client: client.push("crm", items, run_items=1, window=4)
        )
        for runs in range(4, 31):
            await served.spooler.wait_for(runs)
            most = max(most, len(served.spooler.waiting))
            served.spooler.release(count=1)
        served.spooler.release()
    assert most == 4


async def test_pusher_collects_single_items(served: Served) -> None:
    def push(client: Client) -> object:
        with client.pusher("crm", run_items=2) as pusher:
            for index in range(5):
                pusher.send(str(index), key=f"k{index}")
        return pusher.result

    assert await with_client(served, push) == (5, 3, 0)
    assert payloads_of(served.spooler) == [b"0", b"1", b"2", b"3", b"4"]
    assert runs_of(served.spooler)[0].keys() == [b"k0", b"k1"]


async def test_encoded_runs_are_sent_as_they_are(served: Served) -> None:
    runs = [encode_run([os.urandom(100_000)], queue="crm") for _ in range(30)]

    def submit(client: Client) -> object:
        for run in runs:
            client.submit(run)
        return client.drain()

    assert await with_client(served, submit) == (30, 30, 0)
    assert [append.data for append in served.spooler.appends] == runs


async def test_runs_larger_than_the_socket_arrive_while_answers_come(served: Served) -> None:
    runs = [encode_run([os.urandom(4_000_000)], queue="crm") for _ in range(5)]

    def submit(client: Client) -> object:
        for run in runs:
            client.submit(run)
        return client.drain()

    assert await with_client(served, submit) == (5, 5, 0)
    assert [append.data for append in served.spooler.appends] == runs


async def test_ping_and_stats_work_while_pushes_are_in_flight(served: Served) -> None:
    served.spooler.answer = None

    def work(client: Client) -> dict[str, object]:
        client.submit(encode_run([b"x"], queue="crm"))
        assert client.ping(b"hi") >= 0
        report = client.stats()
        assert client.unacknowledged == 1
        trio.from_thread.run_sync(served.spooler.release)
        return report

    report = await with_client(served, work)
    assert {**report, "ingest": None} == {**REPORT, "ingest": None}
    assert len(served.spooler.appends) == 1


async def test_refusal_for_good_is_raised_and_the_rest_is_stored(served: Served) -> None:
    def push(client: Client) -> object:
        client.submit(encode_run([b"1"], queue="crm"))
        client.submit(b"no run at all")
        client.submit(encode_run([b"2"], queue="crm"))
        with pytest.raises(Refused) as caught:
            client.drain()
        assert (caught.value.code, caught.value.retryable) == ("BAD_RUN", False)
        return client.drain()

    assert await with_client(served, push) == (2, 2, 0)
    assert payloads_of(served.spooler) == [b"1", b"2"]


async def test_each_refusal_is_raised_once(served: Served) -> None:
    def push(client: Client) -> None:
        for _ in range(3):
            client.submit(b"no run at all")
        for _ in range(3):
            with pytest.raises(Refused, match="BAD_RUN"):
                client.drain()
        client.drain()

    await with_client(served, push)


async def test_duplicate_is_counted_as_stored_before(served: Served) -> None:
    served.spooler.answer = lambda _: Outcome.DUPLICATE
    assert await with_client(served, lambda client: client.push("crm", ["1"])) == (1, 1, 1)


async def test_lost_connection_is_made_again_and_the_same_bytes_sent_again(
    served: Served,
) -> None:
    served.spooler.answer = None

    async def die_once() -> None:
        await served.spooler.wait_for(3)
        served.spooler.release(count=1)
        await trio.testing.wait_all_tasks_blocked()
        cut_connections(served)
        await served.spooler.wait_for(5)
        served.spooler.release(Outcome.DUPLICATE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(die_once)
        result = await with_client(served, lambda c: c.push("crm", ["1", "2", "3"], run_items=1))
    assert result == (3, 3, 2)
    data = [append.data for append in served.spooler.appends]
    assert data[3:] == data[1:3]


async def test_drained_daemon_is_waited_for_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.model.refusals.DRAINING_RETRY_MS", 1)
    connected, drained, pushed = trio.Event(), trio.Event(), trio.Event()
    results: list[object] = []

    def work(client: Client) -> None:
        trio.from_thread.run_sync(connected.set)
        trio.from_thread.run(drained.wait)
        results.append(client.push("crm", ["1", "2"]))
        trio.from_thread.run_sync(pushed.set)

    async with trio.open_nursery() as nursery:
        async with serve(tmp_path) as first:
            nursery.start_soon(with_client, first, work)
            await connected.wait()
            await first.ingest.drain()
            drained.set()
        async with serve(tmp_path):
            await pushed.wait()
    assert results == [(2, 1, 0)]
    assert first.spooler.appends == []


async def test_idle_connection_that_the_daemon_ended_is_no_error(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:

        def work(client: Client) -> object:
            client.push("crm", ["1"])
            trio.from_thread.run_sync(cut_connections, served)
            return client.push("crm", ["2"])

        assert await with_client(served, work) == (1, 1, 0)
        assert payloads_of(served.spooler) == [b"1", b"2"]


async def test_pushes_are_refused_for_good_by_a_daemon_that_denies(tmp_path: Path) -> None:
    async with serve(tmp_path, allow_uids=[os.getuid() + 1]) as served:
        with pytest.raises(Refused, match="DENIED"):
            await with_client(served, lambda client: client.ping())


async def test_connection_over_the_limit_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.model.refusals.BUSY_RETRY_MS", 1)
    refused = trio.Event()
    turn_away = Ingest._turn_away

    def note(ingest: Ingest, sock: socket.socket, why: Refused) -> None:
        turn_away(ingest, sock, why)
        refused.set()

    monkeypatch.setattr(Ingest, "_turn_away", note)
    async with serve(tmp_path, max_connections=1) as served:
        other = await served.greeted()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(with_client, served, lambda client: client.ping())
            await refused.wait()
            await other.stream.aclose()


async def test_close_says_goodbye(served: Served) -> None:
    await with_client(served, lambda client: client.ping())
    await trio.testing.wait_all_tasks_blocked()
    assert served.ingest.figures() == {"connections": 0, "in_flight_bytes": 0, "refused": {}}


async def test_context_left_by_an_exception_does_not_wait(served: Served) -> None:
    served.spooler.answer = None

    def push(client: Client) -> None:
        client.submit(encode_run([b"x"], queue="crm"))
        raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        await with_client(served, push)


async def test_closed_client_takes_no_more(served: Served) -> None:
    def work(client: Client) -> None:
        client.close()
        client.close()
        with pytest.raises(Unreachable, match="closed"):
            client.push("crm", ["1"])

    await with_client(served, work)


async def test_bad_queue_name_is_told_before_anything_is_sent(served: Served) -> None:
    with pytest.raises(BadRun, match="not a valid queue name"):
        await with_client(served, lambda client: client.push("no/queue", ["1"]))


async def test_runs_are_cut_at_what_the_daemon_takes(tmp_path: Path) -> None:
    async with serve(tmp_path, max_run_bytes=65536) as served:
        items = [os.urandom(1000) for _ in range(200)]
        result = await with_client(served, lambda client: client.push("crm", items))
        assert result.items == 200
        assert payloads_of(served.spooler) == items
        assert max(run.head.raw_bytes for run in runs_of(served.spooler)) <= 65536


def test_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=f"{tmp_path}/none.sock: there is no such socket"):
        connect(tmp_path / "none.sock")


def test_socket_on_which_nobody_listens_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unreachable, match=f"{path}: no process listens on it"):
        connect(path)


def test_path_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="AF_UNIX path too long"):
        connect(tmp_path / ("x" * 120))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
async def test_permission_denied_is_said_at_once(served: Served) -> None:
    """In a process of its own, that is nobody."""
    served.path.parent.chmod(0o700)
    code = (
        "import os, sys, forebay.client; os.setgid(65534); os.setuid(65534)\n"
        "try: forebay.connect(sys.argv[1], wait=60)\n"
        "except forebay.Unreachable as error: print(error)"
    )
    done = await trio.run_process(
        [sys.executable, "-c", code, str(served.path)],
        capture_stdout=True,
        stdin=subprocess.DEVNULL,
    )
    assert b"permission denied for user 65534" in done.stdout


def test_all_places_are_named_when_none_has_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setattr("forebay.client.socket_candidates", lambda: places)
    with pytest.raises(Unreachable) as caught:
        connect()
    assert all(str(place) in str(caught.value) for place in places)


async def test_second_place_is_used_when_the_first_has_no_daemon(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.client.socket_candidates", lambda: [tmp_path / "a", served.path])

    def work() -> object:
        with connect() as client:
            return client.path

    assert await trio.to_thread.run_sync(work) == served.path


async def test_socket_of_the_environment_is_used(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_SOCKET", str(served.path))

    def work() -> object:
        with connect() as client:
            return client.path

    assert await trio.to_thread.run_sync(work) == served.path


def test_package_offers_what_it_promises() -> None:
    for name in forebay.__all__:
        assert getattr(forebay, name) is not None
    with pytest.raises(AttributeError):
        _ = forebay.no_such_thing
