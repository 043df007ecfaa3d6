"""Transcripts of consumers that pull, against a real warm queue."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing

from forebay import lease_frames, wire
from forebay.errors import Code
from forebay.lease_frames import LeaseReport, LeaseWish, Part, What
from forebay.limits import LEASE_BYTES_MAX
from forebay.run import encode_run, read_run
from forebay.wire import Kind
from tests.wire import examples
from tests.wire.harness import RawClient, Served, serve
from tests.wire.lending import (
    NOW_MS,
    Lending,
    all_delivered,
    extend_frame,
    lease,
    read_leased,
    settle_frame,
)
from tests.wire.test_protocol_examples import EXAMPLES

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def lending() -> Lending:
    return Lending()


@pytest.fixture
async def served(tmp_path: Path, lending: Lending) -> AsyncIterator[Served]:
    async with serve(tmp_path, pull=lending.pull) as served:
        yield served


async def statuses(client: RawClient, kind: Kind, sequence: int) -> list[bool]:
    answered = await client.read()
    assert answered[:2] == (kind, sequence), answered
    return lease_frames.read_statuses(answered[2])


async def refusal(client: RawClient, sequence: int) -> tuple[Code, str]:
    answered, refused = await client.read_error()
    assert (answered, refused.fatal) == (sequence, False)
    return refused.code, refused.text


async def test_daemon_leases_extends_and_settles_as_the_document_says(
    served: Served, lending: Lending
) -> None:
    lending.pull._tokens = count(examples.TOKEN)
    await lending.enter(examples.make_run())
    client = await served.greeted()
    for asked, answered in (
        ("LEASE", "LEASED"),
        ("EXTEND", "EXTENDED"),
        ("SETTLE", "SETTLED"),
    ):
        await client.send(EXAMPLES[asked])
        assert wire.frame(*await client.read()) == EXAMPLES[answered]
    [ended] = lending.ended
    [(failed, failure)] = ended.failed
    assert (ended.delivered, failed, ended.released) == (0b01, 0b10, 0)
    assert (failure.text, failure.retry_after_s) == ("no such customer", 5.0)


async def test_leased_run_has_the_bytes_that_were_pushed(served: Served, lending: Lending) -> None:
    run = encode_run([b"x" * 100] * 50, queue="crm")
    await lending.enter(run, attempt=3)
    [leased] = await lease(await served.greeted(), lease_ms=5000)
    assert (leased.run, leased.bits, leased.attempt) == (run, 0, 3)
    assert leased.until_ms == NOW_MS + 5000
    assert await lending.counts() == (0, 50)


async def test_part_of_a_run_is_leased_with_its_bits(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a", b"b", b"c")
    client = await served.greeted()
    [first] = await lease(client, items=2)
    [second] = await lease(client, items=2)
    assert (first.bits, second.bits) == (0b011, 0b100)
    assert first.run == second.run
    assert first.token != second.token


async def test_few_items_of_a_long_run_come_as_a_run_of_their_own(
    served: Served, lending: Lending
) -> None:
    whole = encode_run([b"%d" % index * 500 for index in range(10)], queue="crm", compressed=False)
    await lending.enter(whole)
    client = await served.greeted()
    await lease(client, items=3)
    [leased] = await lease(client, items=2)
    run = read_run(leased.run)
    assert leased.bits == 0
    assert run.payloads() == [b"3" * 500, b"4" * 500]
    assert run.item_ids() == read_run(whole).item_ids(3, 5)
    await client.send(settle_frame(6, LeaseReport(leased.token, (Part(What.DELIVERED, 0b10),))))
    assert await statuses(client, Kind.SETTLED, 6) == [True]
    assert (lending.ended[0].delivered, lending.ended[0].released) == (1 << 4, 1 << 3)


async def test_nothing_due_is_answered_at_once_without_a_wait(served: Served) -> None:
    client = await served.greeted()
    await client.send(lease_frames.lease(6, LeaseWish("crm")))
    assert wire.frame(*await client.read()) == EXAMPLES["LEASED, nothing"]


async def test_wait_ends_when_items_come_and_others_are_answered_meanwhile(
    served: Served, lending: Lending
) -> None:
    client = await served.greeted()
    await client.send(lease_frames.lease(5, LeaseWish("crm", wait_ms=3_600_000)))
    await client.send(wire.frame(Kind.PING, 6))
    assert (await client.read())[:2] == (Kind.PONG, 6)
    await settled()
    await lending.enter_items(b"a")
    [leased] = await read_leased(client)
    assert read_run(leased.run).payloads() == [b"a"]


async def test_wait_that_runs_out_is_answered_with_nothing(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    client = await served.greeted()
    started = trio.current_time()
    assert await lease(client, wait_ms=20_000) == []
    assert trio.current_time() - started == pytest.approx(20, abs=0.1)


async def test_two_who_wait_do_not_get_the_same_items(served: Served, lending: Lending) -> None:
    first, second = await served.greeted(), await served.greeted()
    for client in (first, second):
        await client.send(lease_frames.lease(5, LeaseWish("crm", items=1, wait_ms=60_000)))
    await settled()
    await lending.enter_items(b"a", b"b")
    runs = [*await read_leased(first), *await read_leased(second)]
    assert sorted(leased.bits for leased in runs) == [0b01, 0b10]


async def test_report_after_the_lease_has_run_out_is_refused_and_changes_nothing(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")
    late, other = await served.greeted(), await served.greeted()
    [stale] = await lease(late, lease_ms=1000)
    await lending.expire(after_ms=1000)
    [fresh] = await lease(other)
    await late.send(settle_frame(6, all_delivered(stale)))
    assert (await refusal(late, 6))[0] == "LEASE_LOST"
    assert [ended.delivered for ended in lending.ended] == [0]
    assert await lending.counts() == (0, 1)
    await other.send(settle_frame(6, all_delivered(fresh)))
    assert await statuses(other, Kind.SETTLED, 6) == [True]


async def test_lease_can_be_settled_once(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client)
    await client.send(
        settle_frame(6, all_delivered(leased)), settle_frame(7, all_delivered(leased))
    )
    answers = {(await client.read())[:2] for _ in range(2)}
    assert answers in ({(Kind.SETTLED, 6), (Kind.ERROR, 7)}, {(Kind.SETTLED, 7), (Kind.ERROR, 6)})
    assert len(lending.ended) == 1


async def test_each_lease_of_a_report_has_its_own_status(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client)
    unknown = LeaseReport(leased.token + 1000, (Part(What.DELIVERED),))
    await client.send(settle_frame(6, unknown, all_delivered(leased)))
    assert await statuses(client, Kind.SETTLED, 6) == [False, True]


async def test_token_of_another_queue_is_lost(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client)
    await client.send(settle_frame(6, all_delivered(leased), queue="other"))
    assert (await refusal(client, 6))[0] == "LEASE_LOST"
    assert await lending.counts() == (0, 1)


async def test_extended_lease_outlives_its_first_end(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client, lease_ms=1000)
    await client.send(extend_frame(6, [leased.token], 10_000))
    assert await statuses(client, Kind.EXTENDED, 6) == [True]
    await lending.expire(after_ms=5000)
    await client.send(settle_frame(7, all_delivered(leased)))
    assert await statuses(client, Kind.SETTLED, 7) == [True]


async def test_lease_that_has_run_out_cannot_be_extended(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client, lease_ms=1000)
    await lending.expire(after_ms=1000)
    await client.send(extend_frame(6, [leased.token], 10_000))
    assert (await refusal(client, 6))[0] == "LEASE_LOST"
    assert await lending.counts() == (1, 0)


@pytest.mark.parametrize("how", ["closed", "goodbye", "bad frame"])
async def test_end_of_the_connection_gives_back_what_was_leased_on_it(
    served: Served, lending: Lending, how: str
) -> None:
    await lending.enter_items(b"a", b"b")
    client = await served.greeted()
    await lease(client)
    match how:
        case "closed":
            await client.stream.aclose()
        case "goodbye":
            await client.send(wire.frame(Kind.GOODBYE, 6))
        case _:
            await client.send(b"\xff" * 12)
    await settled()
    assert await lending.counts() == (2, 0)
    assert lending.pull.leases == 0
    [leased] = await lease(await served.greeted())
    assert leased.attempt == 0


async def test_lease_that_is_kept_outlives_its_connection(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client, keep=True)
    await client.stream.aclose()
    await settled()
    assert await lending.counts() == (0, 1)
    client = await served.greeted()
    await client.send(settle_frame(6, all_delivered(leased)))
    assert await statuses(client, Kind.SETTLED, 6) == [True]


async def test_client_that_vanishes_while_it_waits_takes_nothing(
    served: Served, lending: Lending
) -> None:
    client = await served.greeted()
    await client.send(lease_frames.lease(5, LeaseWish("crm", wait_ms=3_600_000)))
    await settled()
    await client.stream.aclose()
    await settled()
    await lending.enter_items(b"a")
    await settled()
    assert await lending.counts() == (1, 0)
    assert served.ingest.figures()["connections"] == 0
    assert served.in_flight_bytes == 0


async def test_goodbye_ends_a_wait_at_once(served: Served) -> None:
    client = await served.greeted()
    await client.send(lease_frames.lease(5, LeaseWish("crm", wait_ms=3_600_000)))
    await settled()
    await client.send(wire.frame(Kind.GOODBYE, 6))
    with trio.fail_after(60):
        assert await read_leased(client) == []
        assert (await client.read())[:2] == (Kind.FAREWELL, 6)


async def test_paused_queue_lends_nothing_until_it_is_resumed(
    served: Served, lending: Lending, autojump_clock: trio.testing.MockClock
) -> None:
    lending.paused = None
    await lending.enter_items(b"a")
    client = await served.greeted()
    assert await lease(client, wait_ms=2000) == []
    await client.send(lease_frames.lease(5, LeaseWish("crm", wait_ms=60_000)))
    await trio.sleep(10)
    assert await lending.counts() == (1, 0)
    lending.paused = frozenset()
    started = trio.current_time()
    assert len(await read_leased(client)) == 1
    assert trio.current_time() - started < 1


async def test_paused_flow_is_passed_over_and_resumed(
    served: Served, lending: Lending, autojump_clock: trio.testing.MockClock
) -> None:
    lending.paused = frozenset({"nightly"})
    await lending.enter_items(b"a", flow="nightly")
    await lending.enter_items(b"b")
    client = await served.greeted()
    [leased] = await lease(client)
    assert read_run(leased.run).payloads() == [b"b"]
    await client.send(lease_frames.lease(5, LeaseWish("crm", wait_ms=60_000)))
    await trio.sleep(10)
    lending.paused = frozenset()
    [leased] = await read_leased(client)
    assert read_run(leased.run).payloads() == [b"a"]


async def test_queue_that_is_not_active_lends_nothing(served: Served, lending: Lending) -> None:
    assert lending.settings is not None
    lending.settings = lending.settings.model_copy(update={"is_active": False})
    await lending.enter_items(b"a")
    assert await lease(await served.greeted()) == []


async def test_queue_that_is_not_known_is_refused(served: Served, lending: Lending) -> None:
    lending.settings = None
    client = await served.greeted()
    await client.send(lease_frames.lease(5, LeaseWish("cmr")))
    assert (await refusal(client, 5))[0] == "UNKNOWN_QUEUE"


@pytest.mark.parametrize(
    "body,text",
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "queue"),
        (b'{"queue":7}', "queue"),
        (b'{"queue":"no/queue"}', "is not a valid queue name"),
        (b'{"queue":"crm","items":0}', "items"),
        (b'{"queue":"crm","items":true}', "items"),
        (b'{"queue":"crm","items":70000}', "items"),
        (b'{"queue":"crm","bytes":1.5}', "bytes"),
        (b'{"queue":"crm","lease_ms":-1}', "lease_ms"),
        (b'{"queue":"crm","wait_ms":99999999}', "wait_ms"),
        (b'{"queue":"crm","keep":1}', "keep"),
        (b'{"queue":"crm","consumer":null}', "consumer"),
    ],
)
async def test_lease_that_makes_no_sense_is_refused_and_the_connection_goes_on(
    served: Served, body: bytes, text: str
) -> None:
    client = await served.greeted()
    await client.send(wire.frame(Kind.LEASE, 5, body))
    code, said = await refusal(client, 5)
    assert code == "BAD_REQUEST"
    assert text in said
    assert await lease(client) == []


@pytest.mark.parametrize(
    "parts",
    [
        (Part(What.DELIVERED, 0b01), Part(What.FAILED, 0b11, "no")),
        (Part(What.DELIVERED, 0b100),),
        (Part(What.RELEASED, 1 << 4000),),
    ],
    ids=["twice", "not there", "far from there"],
)
async def test_report_about_items_that_are_not_there_does_nothing(
    served: Served, lending: Lending, parts: tuple[Part, ...]
) -> None:
    await lending.enter_items(b"a", b"b")
    client = await served.greeted()
    [leased] = await lease(client)
    await client.send(settle_frame(6, LeaseReport(leased.token, parts)))
    assert (await refusal(client, 6))[0] == "BAD_REQUEST"
    assert await lending.counts() == (0, 2)
    await client.send(settle_frame(7, all_delivered(leased)))
    assert await statuses(client, Kind.SETTLED, 7) == [True]


async def test_lease_that_is_named_twice_in_a_report_is_refused(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client)
    await client.send(settle_frame(6, all_delivered(leased), all_delivered(leased)))
    assert (await refusal(client, 6))[0] == "BAD_REQUEST"
    await client.send(extend_frame(7, [leased.token] * 2, 1000))
    assert (await refusal(client, 7))[0] == "BAD_REQUEST"
    assert await lending.counts() == (0, 1)


@pytest.mark.parametrize("kind", [Kind.SETTLE, Kind.EXTEND])
async def test_body_that_is_no_report_is_refused_and_the_connection_goes_on(
    served: Served, kind: Kind
) -> None:
    client = await served.greeted()
    for sequence, body in enumerate((b"", b"\x03crm", b"\xff" * 40, b"\x00" * 40), start=5):
        await client.send(wire.frame(kind, sequence, body))
        assert (await refusal(client, sequence))[0] == "BAD_REQUEST"
    assert await lease(client) == []


@pytest.mark.parametrize("kind", [Kind.LEASE, Kind.SETTLE, Kind.EXTEND, Kind.CONTROL])
async def test_frame_over_its_limit_is_thrown_away_and_the_connection_goes_on(
    served: Served, kind: Kind
) -> None:
    client = await served.greeted()
    size = LEASE_BYTES_MAX + 1 if kind is Kind.LEASE else 17 * 2**20
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, wire.frame(kind, 5, bytes(size)))
        assert (await refusal(client, 5))[0] == "TOO_LARGE"
    assert await lease(client, sequence=6) == []


async def test_no_more_leases_wait_than_are_allowed(served: Served) -> None:
    client = await served.greeted()
    for sequence in range(1, 18):
        await client.send(lease_frames.lease(sequence, LeaseWish("crm", wait_ms=60_000)))
    sequence, refused = await client.read_error()
    assert (refused.code, "16" in refused.text) == ("BAD_REQUEST", True)
    assert 1 <= sequence <= 17


async def test_store_that_is_away_is_worth_another_try(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")
    client = await served.greeted()
    [leased] = await lease(client)
    lending.is_away = True
    await client.send(settle_frame(6, all_delivered(leased)))
    sequence, refused = await client.read_error()
    assert (sequence, refused.code, refused.retryable) == (6, "UNAVAILABLE", True)
    assert refused.retry_after_ms > 0
    lending.is_away = False
    await client.send(settle_frame(7, all_delivered(leased)))
    assert await statuses(client, Kind.SETTLED, 7) == [True]


async def test_draining_ends_waits_and_lets_consumers_report(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")
    client, waiting = await served.greeted(), await served.greeted()
    [leased] = await lease(client)
    await waiting.send(lease_frames.lease(5, LeaseWish("crm", wait_ms=3_600_000)))
    await settled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.ingest.drain)
        assert await read_leased(waiting) == []
        assert (await waiting.read_last_words()).code == "DRAINING"
        await client.send(lease_frames.lease(6, LeaseWish("crm")))
        assert (await refusal(client, 6))[0] == "DRAINING"
        await client.send(settle_frame(7, all_delivered(leased)))
        assert await statuses(client, Kind.SETTLED, 7) == [True]
        assert (await client.read_last_words()).code == "DRAINING"


async def test_draining_does_not_wait_for_leases_that_ran_out(
    tmp_path: Path, lending: Lending, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither for one that had run out before, nor for one that does so meanwhile."""
    await lending.enter_items(b"a")
    await lending.enter_items(b"b")
    async with serve(tmp_path, pull=lending.pull) as served:
        early, late = await served.greeted(), await served.greeted()
        await lease(early, items=1, lease_ms=1000)
        await lease(late, items=1, lease_ms=5000)
        lending.now_ms += 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.ingest.drain)
            with trio.fail_after(0.5):
                assert (await early.read_last_words()).code == "DRAINING"
            await trio.sleep(10)
            assert served.ingest.figures()["connections"] == 1
            lending.now_ms += 4000
            with trio.fail_after(1.5):
                assert (await late.read_last_words()).code == "DRAINING"


async def test_consumer_that_holds_leases_is_not_idle(
    tmp_path: Path, lending: Lending, autojump_clock: trio.testing.MockClock
) -> None:
    await lending.enter_items(b"a")
    async with serve(tmp_path, pull=lending.pull, idle_timeout=5) as served:
        client = await served.greeted()
        [leased] = await lease(client)
        await trio.sleep(20)
        await client.send(settle_frame(6, all_delivered(leased)))
        assert await statuses(client, Kind.SETTLED, 6) == [True]
        await trio.sleep(20)
        assert (await client.read_last_words()).code == "TIMEOUT"
