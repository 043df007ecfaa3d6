"""Whose fault a failure was, who had the item, and what ties it to other work: from the push to
the log, the delivery, the dead letter and the history."""

from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import structlog.testing

from actors.model.outcomes import Failure
from actors.model.slices import HeldBy
from actors.workers.pull_reports import what_became
from forebay.lease_frames import Part, What
from tests.actors.control.test_items import find_all, until_state
from tests.actors.observers.test_history import until_seen
from tests.actors.workers.test_retries import OWNERS
from tests.eventually import eventually
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, all_good

BUSY = Failure("503", status=503)
NO_CREDIT = Failure("no credit", is_permanent=True, failure_reason="business")
LATER = Failure("no credit yet", failure_reason="business")
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"correlation_id": "order-17", "traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}


@OWNERS
async def test_a_business_failure_is_dead_at_once_and_says_so(tmp_path: Path, enter: Any) -> None:
    async with running(tmp_path, {"q": {"max_retries": 5}}) as rig:
        rig.to().verdict = all_fail(NO_CREDIT)
        (item_id,) = await enter(rig, 1)
        assert await rig.until_books(held=0) == {"accepted": 1, "dead": 1}
        (letter,) = await rig.dead()
        (error,) = letter.errors
        assert (error.attempt, error.text) == (1, "no credit")
        assert (error.failure_reason, error.locked_by) == ("business", f"{gethostname()}/q/1")
        shown = await rig.control("items.show", id=item_id)
        assert (shown["state"], shown["failure_reason"]) == ("FAILED", "business")
        assert (shown["retries"], shown["locked_by"]) == (0, f"{gethostname()}/q/1")
        assert shown["enqueued_ms"] <= shown["locked_ms"] <= shown["updated_ms"]
        await rig.control("dead.remove", which={})
        shown = await rig.control("items.show", id=item_id)
        assert (shown["state"], shown["failure_reason"]) == ("DELETED", "business")


async def test_a_business_failure_that_is_to_be_tried_again_is(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": {"max_retries": 1}}) as rig:
        rig.to().verdict = all_fail(LATER)
        await rig.push(1)
        await rig.until_books(held=0, dead=1)
        (letter,) = await rig.dead()
        assert [error.failure_reason for error in letter.errors] == ["business"] * 2


async def test_the_reason_of_a_retry_outlives_a_restart(tmp_path: Path) -> None:
    # As late as warm takes it.
    backoff = {"backoff": {"initial": "59s", "max": "59s", "jitter": 0}}
    async with running(tmp_path, {"q": backoff}) as rig:
        rig.to().verdict = all_fail(LATER)
        (item_id,) = await rig.push(1)
        await until_state(rig, item_id, "SCHEDULED")
        await rig.restart()
        shown = await until_state(rig, item_id, "SCHEDULED")
        assert [error["failure_reason"] for error in shown["errors"]] == ["business"]


@OWNERS
async def test_what_is_delivered_is_kept_with_who_had_it(tmp_path: Path, enter: Any) -> None:
    async with running(tmp_path, {"q": {"history": "all"}}) as rig:
        await enter(rig, 2)
        await rig.until_books(held=0)
        (row, *_) = await until_seen(rig, 2)
        assert row.finished is not None
        assert row.finished.locked_by == f"{gethostname()}/q/1"
        assert 0 < row.finished.locked_ms <= row.finished.finished_ms


@OWNERS
async def test_a_consumer_s_result_is_kept_item_by_item(tmp_path: Path, enter: Any) -> None:
    queue = {"handler": {"type": "pull"}, "history": "all"}
    async with running(tmp_path, {"q": queue}) as rig:
        ids = await enter(rig, 3)
        await leased_and_settled(rig, 3, Part(What.DELIVERED, 0b010, "invoice 4711"))
        await rig.until_books(held=0)
        await until_seen(rig, 3)
        shown = [await rig.control("items.show", id=item_id) for item_id in ids]
        assert [item["result"] for item in shown] == [None, "invoice 4711", None]
        assert {item["locked_by"] for item in shown} == {"host/q/me"}


async def leased_and_settled(rig: Rig, items: int, *parts: Part) -> None:
    """A consumer reports; what it does not name is delivered."""
    warm = rig.life.warm

    async def check() -> None:
        fill = await warm.fill("q")
        assert fill.waiting >= items, fill

    await eventually(check)
    for leased in await warm.lease("q", items, 1 << 20, 60.0):
        every = (*parts, Part(What.DELIVERED))
        ended = what_became(leased, every, HeldBy("host/q/me", rig.now_ms()))
        (recording,) = await rig.life.daemon.workers.pull._settling.settle("q", [ended])
        assert await recording.wait()


@pytest.mark.parametrize("due_s", [0.0, 3600.0], ids=["journal", "cold"])
async def test_one_id_is_followed_from_push_to_history(tmp_path: Path, due_s: float) -> None:
    async with running(tmp_path, {"q": {"max_retries": 1}}) as rig:
        with structlog.testing.capture_logs() as logs:
            destination = rig.to()
            destination.verdict = all_fail(BUSY)
            (item_id,) = await rig.push(1, headers=HEADERS, due_s=due_s)
            if due_s:
                await rig.until_books(cold=1)
                rig.advance(due_s)
            await rig.until_books(held=0, dead=1)
            lines = [line for line in logs if line["event"].startswith("delivery.")]
        assert [line["event"] for line in lines] == ["delivery.failed", "delivery.dead"]
        for line in lines:
            assert {name: line[name] for name in HEADERS} == HEADERS
            assert (line["item"], line["error"]) == (item_id, "503")
        assert dict(destination.batches[0].items[0].headers) == HEADERS
        destination.verdict = all_good
        await rig.control("dead.retry", which={})
        await rig.until_books(held=0, dead=0)
        await until_seen(rig, 1)
        await rig.push(1, headers={"correlation_id": "order-18"})
        searches: list[dict[str, Any]] = [{"correlation_id": "order-17"}, {"traceparent": TRACE_ID}]
        for which in searches:
            (found,) = await find_all(rig, queue="q", state="DONE", **which)
            assert found["id"] == item_id
            assert {name: found[name] for name in HEADERS} == HEADERS
        assert await find_all(rig, queue="q", traceparent=TRACE_ID[:-1]) == []


async def test_failures_are_searched_by_reason(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": {"max_retries": 0}}) as rig:
        rig.to().verdict = all_fail(NO_CREDIT)
        (refused,) = await rig.push(1)
        await rig.until_books(dead=1)
        rig.to().verdict = all_fail(BUSY)
        await rig.push(1)
        await rig.until_books(dead=2)
        (found,) = await find_all(rig, failure_reason="business")
        assert (found["id"], found["last_error"]) == (refused, "no credit")
