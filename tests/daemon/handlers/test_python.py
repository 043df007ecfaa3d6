"""The python handler in the loop and in threads: what a function is given, and what it can say."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.model.outcomes import Failure, ItemResult, Report
from actors.model.slices import indexes
from actors.ports.handler import NoPace
from daemon.errors import CannotStart
from daemon.handlers.python.handler import THREADS_A_SENDER, PythonDelivery
from tests.daemon.handlers import functions
from tests.daemon.handlers.batches import (
    damaged_slice,
    deliver,
    failures,
    opened,
    slice_of,
    texts,
)

HERE = "tests.daemon.handlers.functions"


@pytest.fixture(autouse=True)
def _forgetting() -> Iterator[None]:
    functions.gate.clear()
    yield
    functions.gate.set()
    functions.seen.clear()
    functions.batches.clear()
    functions.threads.clear()


def python(function: str, **settings: Any) -> dict[str, Any]:
    return {"type": "python", "function": f"{HERE}:{function}", "timeout": "1h", **settings}


async def test_function_gets_everything_that_is_known_of_an_item() -> None:
    part = slice_of(
        [b"zero", b'{"a": 1}', b"two", b"three"],
        bits=0b1010,
        attempt=3,
        keys=[b"k0", b"k1", b"k2", b""],
        flow="nightly",
        action="upsert",
        priority=7,
        headers={"correlation-id": "c-7"},
        enqueued_ms=1_700_000_000_000,
    )
    report = await deliver(opened(python("keep")), part)
    assert report == Report()
    first, second = functions.seen
    assert first.id.endswith("-1")
    assert (first.queue, first.key, first.payload) == ("crm", "k1", b'{"a": 1}')
    assert (first.priority, first.flow, first.action) == (7, "nightly", "upsert")
    assert (first.attempt, first.enqueued_ms) == (3, 1_700_000_000_000)
    assert first.headers == {"correlation-id": "c-7"}
    assert first.json() == {"a": 1}
    assert (second.id, second.key, second.text) == (f"{first.id[:-1]}3", None, "three")


@pytest.mark.parametrize("function", ["by_payload", "by_payload_async"])
async def test_each_item_has_an_outcome_of_its_own(function: str) -> None:
    first = slice_of([b"ok", b"retry", b"error", b"ok"])
    second = slice_of([b"reject", b"retry:90", b"exit", b"false"])
    report = await deliver(opened(python(function)), first, second)
    said = failures(report)
    assert said.pop((1, 3)).text == "the function returned False: failures must be raised"
    assert said == {
        (0, 1): Failure("later", blames_destination=False),
        (0, 2): Failure("ValueError: bad thing"),
        (1, 0): Failure("no such customer", is_permanent=True, blames_destination=False),
        (1, 1): Failure("much later", retry_after_s=90, blames_destination=False),
        (1, 2): Failure("SystemExit: 3"),
    }
    assert len(functions.seen) == 2


async def test_batch_is_one_hop_for_all_of_its_items() -> None:
    await deliver(opened(python("keep")), slice_of([b"x"] * 50), slice_of([b"y"] * 50))
    assert len(functions.seen) == 100
    assert len(functions.threads) == 1


@pytest.mark.parametrize("function", ["whole", "whole_async"])
async def test_batch_function_is_called_once_and_speaks_for_all(function: str) -> None:
    handler = opened(python(function, batch=True))
    assert await deliver(handler, slice_of([b"a", b"b"]), slice_of([b"c"])) == Report()
    assert functions.batches == [["a", "b", "c"]]
    report = await deliver(handler, slice_of([b"error", b"b"]))
    assert failures(report) == dict.fromkeys(
        [(0, 0), (0, 1)], Failure("ConnectionError: nobody there")
    )


@pytest.mark.parametrize("function", ["whole", "whole_async"])
async def test_batch_function_may_say_something_about_each_item(function: str) -> None:
    report = await deliver(
        opened(python(function, batch=True)), slice_of([b"mixed", b"1", b"2", b"3", b"4", b"5"])
    )
    assert sorted(failures(report)) == [(0, 1), (0, 2), (0, 3), (0, 5)]
    assert failures(report)[0, 2].is_permanent
    assert texts(report)[0, 3] == "KeyError: 'k'"


async def test_wrong_number_of_results_fails_the_batch() -> None:
    report = await deliver(opened(python("whole", batch=True)), slice_of([b"short", b"b"]))
    text = "the function returned 1 results for 2 items"
    assert texts(report) == {(0, 0): text, (0, 1): text}


@pytest.mark.parametrize(
    "how",
    [
        {"function": "returns"},
        {"function": "returns_async"},
        {"function": "returns", "mode": "process"},
        {"function": "returns_all", "batch": True},
        {"function": "returns_all", "batch": True, "mode": "process"},
    ],
    ids=["thread", "loop", "process", "batch", "batch in a process"],
)
async def test_a_value_is_the_items_result(how: dict[str, Any]) -> None:
    names = list(functions.VALUES)
    part = slice_of([name.encode() for name in names])
    report = await deliver(opened(python(**how)), part)
    found = {names[index]: text for index, text in results(report).items()}
    assert found.pop("long") == "x" * 16_383 + "…"
    assert found == {
        "text": "sent as m-1",
        "object": '{"id":7,"at":[1.5,null,true]}',
        "number": "0",
        "list": "[]",
        "half": "half a pair: ?",
    }
    failed = {names[index]: text for (_, index), text in texts(report).items()}
    assert failed.keys() == {"response", "deep"}
    assert failed["response"].startswith("the function returned a Response, which JSON cannot hold")


async def test_one_value_of_a_batch_function_is_the_result_of_all_items() -> None:
    handler = opened(python("returns_one", batch=True))
    report = await deliver(handler, slice_of([b"a", b"b"]), slice_of([b"c"]))
    assert report.results == (
        ItemResult(0, 0b11, '{"batch":3}'),
        ItemResult(1, 0b1, '{"batch":3}'),
    )


def results(report: Report) -> dict[int, str]:
    """The results of the items of the first slice."""
    found: dict[int, str] = {}
    for order, bits, text in report.results:
        assert order == 0
        found |= dict.fromkeys(indexes(bits), text)
    return found


async def test_object_with_an_async_call_is_async() -> None:
    assert await deliver(opened(python("caller")), slice_of([b"x"])) == Report()
    assert [item.text for item in functions.seen] == ["x"]


async def test_coroutine_of_a_plain_function_is_no_delivery() -> None:
    report = await deliver(opened(python("forgets_async")), slice_of([b"x"]))
    assert "async def" in texts(report)[0, 0]
    assert not functions.seen


async def test_what_cannot_be_unpacked_is_rejected_and_the_rest_delivered() -> None:
    report = await deliver(opened(python("keep")), damaged_slice(), slice_of([b"good"]))
    (failure,) = failures(report).values()
    assert failure.is_permanent
    assert list(failures(report)) == [(0, 0)]
    assert [item.text for item in functions.seen] == ["good"]


async def test_async_function_is_cancelled_at_the_deadline(autojump_clock: MockClock) -> None:
    handler = opened(python("by_payload_async", timeout="30s"))
    report = await deliver(handler, slice_of([b"done", b"hang", b"never reached"]))
    assert trio.current_time() == pytest.approx(30)
    text = "the function was not done after 30s"
    assert failures(report) == {(0, 1): Failure(text), (0, 2): Failure(text)}


async def test_thread_past_the_deadline_is_left_and_called_for_nothing_more(
    mock_clock: MockClock,
) -> None:
    handler = opened(python("by_payload", timeout="30s"))
    assert isinstance(handler, PythonDelivery)
    reports: list[Report] = []

    async def send() -> None:
        reports.append(await deliver(handler, slice_of([b"done", b"wait", b"after"])))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.to_thread.run_sync(functions.entered.acquire)
        mock_clock.jump(30)
    text = "the function was not done after 30s"
    assert texts(reports[0]) == {(0, 1): text, (0, 2): text}
    functions.gate.set()
    # When all of the handler's threads can be had, the one that was left behind has come back.
    limiter = handler._limiter
    for _ in range(int(limiter.total_tokens)):
        await limiter.acquire_on_behalf_of(object())
    assert [item.text for item in functions.seen] == ["done", "wait"]


async def test_hung_threads_are_bounded_and_said_to_be(mock_clock: MockClock) -> None:
    handler = opened(python("by_payload", timeout="30s"))
    sender = handler.open_sender(NoPace())
    reports: list[Report] = []

    async def send(payload: bytes) -> None:
        reports.append(await sender.send(handler.prepare([slice_of([payload])])))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, b"wait")
            await trio.to_thread.run_sync(functions.entered.acquire)
            mock_clock.jump(30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, b"ok")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(30)
    assert texts(reports[2])[0, 0].startswith("no thread was free for 30s")
    functions.gate.set()
    await send(b"ok")
    assert reports[3] == Report()


@pytest.mark.parametrize(
    "handler, problem",
    [
        ({"function": "no_such_module:f"}, "function: No module named 'no_such_module'"),
        ({"function": f"{HERE}:nope"}, f"function: module {HERE} has no nope"),
        ({"function": f"{HERE}:NOT_A_FUNCTION"}, "is a int, which cannot be called"),
        (
            {"function": "tests.daemon.handlers.broken_module:f"},
            "importing tests.daemon.handlers.broken_module: RuntimeError: no licence found",
        ),
        ({"function": f"{HERE}:whole_async", "mode": "process"}, "mode: .* is async"),
        ({"function": f"{HERE}:whole_async", "mode": "thread"}, "mode: .* is async"),
    ],
)
def test_function_that_cannot_be_used_is_known_when_it_is_opened(
    handler: dict[str, str], problem: str
) -> None:
    with pytest.raises(CannotStart, match=f"^queues.crm.handler.*{problem}"):
        opened({"type": "python", **handler})


async def test_threads_are_as_many_as_the_senders_that_are_open_may_have() -> None:
    handler = opened(python("keep"))
    assert isinstance(handler, PythonDelivery)
    limiter = handler._limiter
    kept = handler.open_sender(NoPace())
    for _ in range(5):
        sender = handler.open_sender(NoPace())
        assert limiter.total_tokens == 2 * THREADS_A_SENDER
        await sender.aclose()
        await sender.aclose()
        assert limiter.total_tokens == THREADS_A_SENDER
    await kept.aclose()
    assert await deliver(handler, slice_of([b"a"])) == Report()
