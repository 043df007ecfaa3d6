"""Pull and its decisions, without a socket."""

import os

import pytest
import structlog
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors.config.queue import QueueSettings
from actors.model.slices import InJournal, LentRun, Slice, indexes, item_bits
from actors.ports.tiers import Leased, StoreUnavailable
from actors.workers import shipment as shipping
from actors.workers.pull import GRACE_MS, LEASE_S, SWEEP_S, Holdings, lease_s
from actors.workers.pull_reports import Places, what_became
from actors.workers.recording import Recording
from actors.workers.shipment import Shipment, ship, shipped_run
from forebay.errors import BadFrame
from forebay.lease_frames import LeaseReport, LeaseWish, Part, What
from forebay.limits import LEASES_MAX
from forebay.run import encode_run, read_head, read_run
from tests.wire.lending import NOW_MS, Lending, all_delivered

BITS = st.integers(1, 2**40 - 1)


def make_slice(run: bytes, bits: int | None = None) -> Slice:
    head = read_head(run)
    return Slice(
        LentRun(head, run, InJournal(1, 0)), item_bits(0, head.count) if bits is None else bits
    )


def make_leased(items: int, bits: int, token: int = 7) -> Leased:
    run = encode_run([b"x"] * items, queue="crm", compressed=False)
    return Leased(token, make_slice(run, bits), NOW_MS)


@given(BITS, st.data())
def test_items_of_a_slice_are_counted_in_the_order_of_the_run(
    bits: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.integers(0, bits.bit_count() - 1)))
    in_run = list(indexes(bits))
    expected = sum(1 << in_run[item] for item in chosen)
    assert Places(bits).in_run(sum(1 << item for item in chosen)) == expected


@given(
    BITS,
    st.lists(st.tuples(st.sampled_from(What), st.integers(0, 2**42)), max_size=4),
)
def test_every_item_of_a_lease_ends_in_exactly_one_way(
    bits: int, said: list[tuple[What, int]]
) -> None:
    leased = make_leased(40, bits)
    parts = [Part(what, items) for what, items in said]
    try:
        ended = what_became(leased, parts)
    except BadFrame:
        named = 0
        for part in parts:
            items = part.bits or ((1 << bits.bit_count()) - 1) & ~named
            if items & named or items >> bits.bit_count():
                return
            named |= items
        raise
    shares = [ended.delivered, ended.released, *(failed for failed, _ in ended.failed)]
    assert sum(share.bit_count() for share in shares) == bits.bit_count()
    union = 0
    for share in shares:
        union |= share
    assert union == bits


def test_what_a_report_does_not_name_is_released() -> None:
    leased = make_leased(5, 0b11010)
    ended = what_became(leased, [Part(What.DELIVERED, 0b010)])
    assert (ended.delivered, ended.failed, ended.released) == (0b01000, (), 0b10010)
    assert what_became(leased, []).released == 0b11010


def test_part_without_bits_is_the_rest_even_if_there_is_none() -> None:
    leased = make_leased(3, 0b111)
    ended = what_became(leased, [Part(What.DELIVERED), Part(What.FAILED, 0, "no")])
    assert (ended.delivered, ended.failed, ended.released) == (0b111, (), 0)


def test_failure_says_what_the_consumer_said_and_blames_nobody() -> None:
    [(bits, failure)] = what_became(
        make_leased(2, 0b10), [Part(What.FAILED, 0b1, "no such customer", 1500, True)]
    ).failed
    assert (bits, failure.text, failure.retry_after_s) == (0b10, "no such customer", 1.5)
    assert failure.is_permanent
    assert not failure.blames_destination
    [(_, silent)] = what_became(make_leased(2, 0b10), [Part(What.FAILED)]).failed
    assert (bool(silent.text), silent.retry_after_s) == (True, None)


def test_lease_lasts_as_the_consumer_says_or_the_queue_or_a_minute() -> None:
    plain, slow = QueueSettings(), QueueSettings(lease_time=300)
    assert lease_s(1500, slow) == 1.5
    assert lease_s(0, slow) == 300
    assert lease_s(0, plain) == LEASE_S


def test_whole_run_is_sent_as_it_is() -> None:
    run = encode_run([os.urandom(100)] * 100, queue="crm")
    assert shipped_run(make_slice(run)) == (0, run)


def test_half_of_a_run_or_a_small_run_is_sent_as_it_is_with_bits() -> None:
    large = encode_run([os.urandom(100) for _ in range(100)], queue="crm")
    assert shipped_run(make_slice(large, item_bits(0, 50))) == (item_bits(0, 50), large)
    small = encode_run([b"x"] * 100, queue="crm", compressed=False)
    assert shipped_run(make_slice(small, 1 << 99)) == (1 << 99, small)


@pytest.mark.parametrize("has_ids", [False, True])
def test_little_of_a_large_run_is_sent_as_a_run_of_its_own(has_ids: bool) -> None:
    payloads = [os.urandom(100) for _ in range(100)]
    keys = [b"key %d" % index for index in range(100)]
    ids = [bytes(15) + b"\x01" + index.to_bytes(2, "little") for index in range(100)]
    run = encode_run(
        payloads,
        queue="crm",
        keys=keys,
        item_ids=ids if has_ids else None,
        flow="f",
        action="a",
        headers={"h": "1"},
        priority=9,
        due_ms=77,
        enqueued_ms=66,
    )
    bits = 1 << 3 | 1 << 40 | 1 << 41 | 1 << 99
    sent_bits, sent = shipped_run(make_slice(run, bits))
    assert sent_bits == 0
    assert len(sent) < 1000
    whole, part = read_run(run), read_run(sent)
    chosen = [3, 40, 41, 99]
    assert part.payloads() == [payloads[index] for index in chosen]
    assert part.keys() == [keys[index] for index in chosen]
    assert part.item_ids() == [whole.item_ids()[index] for index in chosen]
    kept = ("queue", "flow", "action", "priority", "due_ms", "enqueued_ms", "attempt")
    for name in kept:
        assert getattr(part.head, name) == getattr(whole.head, name)
    assert part.head.headers() == {"h": "1"}


def test_part_that_would_be_longer_than_the_run_is_not_made() -> None:
    run = encode_run([b"x" * 5000, *[b""] * 4], queue="crm", compressed=False)
    assert shipped_run(make_slice(run, 0b00001))[0] in (0, 1)
    assert len(shipped_run(make_slice(run, 0b00001))[1]) <= len(run)


def test_run_that_cannot_be_unpacked_is_sent_as_it_is() -> None:
    run = encode_run([os.urandom(100) for _ in range(100)], queue="crm", compressed=False)
    broken = run[:-4] + b"\xff\xff\xff\x7f"
    assert shipped_run(make_slice(broken, 0b1)) == (0b1, broken)


def test_what_one_answer_cannot_hold_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_ROOM_BYTES", 10_000)
    run = encode_run([os.urandom(4000)], queue="crm", compressed=False)
    leased = [Leased(token, make_slice(run), NOW_MS) for token in range(4)]
    shipment = ship(leased)
    assert [one.token for one in shipment.runs] == [0, 1]
    assert [one.token for one in shipment.rest] == [2, 3]
    monkeypatch.setattr(shipping, "_ROOM_BYTES", 10)
    assert [one.token for one in ship(leased).runs] == [0]


def test_answer_has_no_more_leases_than_a_report_can_name() -> None:
    run = encode_run([b"x"], queue="crm", compressed=False)
    leased = [Leased(token, make_slice(run), NOW_MS) for token in range(LEASES_MAX + 2)]
    shipment = ship(leased)
    assert len(shipment.runs) == LEASES_MAX
    assert [one.token for one in shipment.rest] == [LEASES_MAX, LEASES_MAX + 1]


async def test_what_one_answer_cannot_hold_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_ROOM_BYTES", 10_000)
    lending = Lending()
    for _ in range(4):
        await lending.enter_items(os.urandom(4000))
    runs = await lending.pull.lease(LeaseWish("crm"), Holdings())
    assert len(runs) == 2
    assert await lending.counts() == (2, 2)
    assert lending.pull.leases == 2


async def test_lease_that_runs_out_while_it_is_shipped_is_not_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shipping, "_ROOM_BYTES", 10_000)
    lending = Lending()
    for _ in range(4):
        await lending.enter_items(os.urandom(4000))

    async def take_long(leased: list[Leased]) -> Shipment:
        lending.now_ms += 1000
        await lending.pull.end_late("crm")
        return ship(leased)

    monkeypatch.setattr(lending.pull, "_ship", take_long)
    runs = await lending.pull.lease(LeaseWish("crm", lease_ms=1000), Holdings())
    assert len(runs) == 2
    assert [bool(ended.failed) for ended in lending.ended] == [True] * 4
    assert await lending.pull.settle("crm", [all_delivered(runs[0])]) == [False]
    assert await lending.counts() == (4, 0)


async def test_large_runs_are_cut_in_a_thread() -> None:
    lending = Lending()
    run = encode_run([os.urandom(1000) for _ in range(400)], queue="crm")
    await lending.enter(run)
    [leased] = await lending.pull.lease(LeaseWish("crm", items=10), Holdings())
    assert read_run(leased.run).payloads() == read_run(run).payloads(0, 10)


async def test_leases_that_ran_out_are_forgotten_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Lending()
    holdings = Holdings()
    await lending.enter_items(b"a")
    await lending.pull.lease(LeaseWish("crm", lease_ms=1000), holdings)
    lending.now_ms += 1000 + GRACE_MS + 1
    await trio.sleep(SWEEP_S)
    assert lending.pull.leases == 1
    await lending.pull.lease(LeaseWish("other"), Holdings())
    assert lending.pull.leases == 0
    assert holdings.keys == set()


async def test_lease_that_was_extended_is_not_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Lending()
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(LeaseWish("crm", lease_ms=1000), Holdings())
    assert await lending.pull.extend("crm", [leased.token], 10 * GRACE_MS) == [True]
    lending.now_ms += 1000 + GRACE_MS + 1
    await trio.sleep(SWEEP_S)
    await lending.pull.lease(LeaseWish("other"), Holdings())
    assert await lending.pull.settle("crm", [all_delivered(leased)]) == [True]


async def test_late_report_is_taken_as_long_as_nobody_else_has_the_items() -> None:
    lending = Lending()
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(LeaseWish("crm", lease_ms=1000), Holdings())
    lending.now_ms += 2000
    assert await lending.pull.settle("crm", [all_delivered(leased)]) == [True]


async def test_store_that_is_away_at_the_end_lets_leases_run_out() -> None:
    lending = Lending()
    holdings = Holdings()
    await lending.enter_items(b"a")
    await lending.pull.lease(LeaseWish("crm", consumer="c1"), holdings)
    lending.is_away = True
    with structlog.testing.capture_logs() as lines:
        await lending.pull.give_back(holdings)
    [line] = lines
    assert (line["event"], line["items"], line["consumer"]) == ("pull.left_to_run_out", 1, "c1")
    assert (lending.pull.leases, holdings.keys) == (0, set())
    assert await lending.counts() == (0, 1)


async def test_giving_back_is_one_line_in_the_log_for_each_queue() -> None:
    lending = Lending()
    holdings = Holdings()
    for queue in ("a", "b"):
        for _ in range(3):
            await lending.enter_items(b"x", b"y", queue=queue)
        await lending.pull.lease(LeaseWish(queue), holdings)
    with structlog.testing.capture_logs() as lines:
        await lending.pull.give_back(holdings)
    assert [(line["event"], line["queue"], line["items"]) for line in lines] == [
        ("pull.given_back", "a", 6),
        ("pull.given_back", "b", 6),
    ]
    assert await lending.counts("a") == await lending.counts("b") == (6, 0)


async def test_report_that_has_begun_is_recorded_though_its_connection_ends() -> None:
    lending = Lending()
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(LeaseWish("crm"), Holdings())
    recording, go = trio.Event(), trio.Event()
    settle = lending.settle

    class Slow:
        async def settle(self, queue: str, ended: object) -> list[Recording]:
            recording.set()
            await go.wait()
            return await settle(queue, ended)  # type: ignore[arg-type]

    lending.pull._settling = Slow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lending.pull.settle, "crm", [all_delivered(leased)])
        await recording.wait()
        # Nobody else can settle it meanwhile.
        assert await lending.pull.settle("crm", [all_delivered(leased)]) == [False]
        nursery.cancel_scope.cancel()
        go.set()
    assert len(lending.ended) == 1
    assert await lending.counts() == (0, 0)


async def test_report_that_nobody_records_in_time_can_be_repeated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Lending()
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(LeaseWish("crm"), Holdings())

    class Stuck:
        async def settle(self, queue: str, ended: object) -> list[Recording]:
            await trio.sleep_forever()
            raise AssertionError

    lending.pull._settling = Stuck()
    with pytest.raises(StoreUnavailable):
        await lending.pull.settle("crm", [all_delivered(leased)])
    lending.pull._settling = lending
    assert await lending.pull.settle("crm", [all_delivered(leased)]) == [True]


async def test_faulty_report_among_good_ones_changes_nothing() -> None:
    lending = Lending()
    await lending.enter_items(b"a")
    await lending.enter_items(b"b")
    first, second = await lending.pull.lease(LeaseWish("crm"), Holdings())
    with pytest.raises(BadFrame):
        await lending.pull.settle(
            "crm", [all_delivered(first), LeaseReport(second.token, (Part(What.DELIVERED, 0b10),))]
        )
    assert await lending.counts() == (0, 2)


async def test_bytes_and_items_asked_for_are_limits() -> None:
    lending = Lending()
    slice_ = await lending.enter(encode_run([os.urandom(1000)] * 10, queue="crm", compressed=False))
    holdings = Holdings()
    some = await lending.pull.lease(LeaseWish("crm", bytes=3 * slice_.run.item_bytes), holdings)
    assert await lending.counts() == (7, 3)
    one = await lending.pull.lease(LeaseWish("crm", bytes=1), holdings)
    assert await lending.counts() == (6, 4)
    assert len(some) == len(one) == 1
    assert holdings.keys == {("crm", some[0].token), ("crm", one[0].token)}
