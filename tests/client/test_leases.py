"""The blocking client's leases and control requests, in a thread, against a real ingest."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

import forebay
from actors.model.refusals import not_found
from forebay import lease_frames
from forebay.client import Client, connect
from forebay.control import Control, letter_payload
from forebay.errors import LeaseLost, Refused
from forebay.lease_frames import LeaseReport, Part, What
from forebay.leases import batches
from forebay.limits import LEASES_MAX, SETTLE_BYTES_MAX
from forebay.run import encode_run
from tests.wire.harness import Served, serve
from tests.wire.lending import Lending

T = TypeVar("T")


class DeadStore:
    """A control that knows dead letters, two at a time, and nothing else."""

    def __init__(self) -> None:
        self.letters = [{"id": f"id-{index}", "payload": str(index)} for index in range(5)]
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((op, dict(fields)))
        if op == "dead.edit":
            raise not_found(f"dead letter {fields['id']}")
        if op == "dead.count":
            return {"count": len(self.letters)}
        first = int(fields["cursor"] or 0)
        last = first + min(2, fields["limit"])
        page = self.letters[first:last]
        cursor = str(last) if last < len(self.letters) else None
        if op == "dead.find":
            return {"letters": page, "cursor": cursor}
        return {"done": len(page), "cursor": cursor}


@pytest.fixture
def lending() -> Lending:
    return Lending()


@pytest.fixture
def store() -> DeadStore:
    return DeadStore()


@pytest.fixture
async def served(tmp_path: Path, lending: Lending, store: DeadStore) -> AsyncIterator[Served]:
    async with serve(tmp_path, pull=lending.pull, control=store) as served:
        yield served


async def with_client(served: Served, work: Callable[[Client], T], patience_s: float = 20) -> T:
    def run() -> T:
        with connect(served.path, timeout=patience_s) as client:
            return work(client)

    return await trio.to_thread.run_sync(run, abandon_on_cancel=True)


async def test_items_are_all_that_was_pushed_about_them(served: Served, lending: Lending) -> None:
    run = encode_run(
        [b'{"a":1}', b"\xff"],
        queue="crm",
        keys=[b"k1", b""],
        flow="nightly",
        action="upsert",
        priority=3,
        headers={"trace": "7"},
        enqueued_ms=1234,
    )
    await lending.enter(run, attempt=2)

    def work(client: Client) -> list[forebay.Item]:
        with client.lease("crm") as items:
            return list(items)

    first, second = await with_client(served, work)
    assert (first.queue, first.flow, first.action, first.priority) == (
        "crm",
        "nightly",
        "upsert",
        3,
    )
    assert (first.attempt, first.headers, first.enqueued_ms) == (2, {"trace": "7"}, 1234)
    assert (first.key, second.key) == ("k1", None)
    assert (first.json(), second.payload) == ({"a": 1}, b"\xff")
    assert second.id == first.id[:-1] + "1"


async def test_leaving_the_block_acknowledges_everything(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a", b"b")
    await lending.enter_items(b"c")

    def work(client: Client) -> list[bytes]:
        with client.lease("crm") as items:
            return [item.payload for item in items]

    assert await with_client(served, work) == [b"a", b"b", b"c"]
    assert [ended.delivered for ended in lending.ended] == [0b11, 0b1]
    assert await lending.counts() == (0, 0)


async def test_exception_gives_back_what_was_not_settled(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a", b"b")

    def work(client: Client) -> None:
        with client.lease("crm") as items:
            items.ack(items[0])
            raise KeyError("boom")

    with pytest.raises(KeyError):
        await with_client(served, work)
    [ended] = lending.ended
    assert (ended.delivered, ended.failed, ended.released) == (0b01, (), 0b10)


async def test_items_can_be_settled_one_by_one(served: Served, lending: Lending) -> None:
    await lending.enter_items(*(b"%d" % index for index in range(5)))

    def work(client: Client) -> None:
        with client.lease("crm") as lease:
            lease.nack(lease[1], delay_s=1.5, error="no")
            lease.nack(lease[2:3], error="never", permanent=True)
            lease.release(lease[3])
            lease.ack([lease[0]])
            assert [item.payload for item in lease.open_items()] == [b"4"]

    await with_client(served, work)
    [ended] = lending.ended
    assert (ended.delivered, ended.released) == (0b10001, 0b01000)
    (later, why), (never, why_never) = ended.failed
    assert (later, why.text, why.retry_after_s, why.is_permanent) == (0b10, "no", 1.5, False)
    assert (never, why_never.text, why_never.is_permanent) == (0b100, "never", True)
    assert why_never.retry_after_s is None


async def test_a_business_failure_is_permanent_unless_it_is_said_otherwise(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a", b"b", b"c", b"d")

    def work(client: Client) -> None:
        with client.lease("crm", consumer="robot 7") as lease:
            lease.nack(lease[0], error="no credit", reason="business")
            lease.nack(lease[1], error="not yet", permanent=False, reason="business")
            lease.nack(lease[2], error="down")
            with pytest.raises(ValueError, match="application, business"):
                lease.nack(lease[3], reason="weather")  # type: ignore[arg-type]
            lease.ack(lease[3], result="invoice 4711")

    await with_client(served, work)
    [ended] = lending.ended
    assert [(why.failure_reason, why.is_permanent) for _, why in ended.failed] == [
        ("business", True),
        ("business", False),
        ("application", False),
    ]
    assert (ended.delivered, ended.results) == (0b1000, ((0b1000, "invoice 4711"),))
    assert ended.holder is not None
    assert ended.holder.by == "crm/robot 7"


async def test_run_is_settled_as_soon_as_all_of_it_is_decided(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")
    await lending.enter_items(b"b", b"c")

    def work(client: Client) -> None:
        lease = client.lease("crm")
        lease.ack(lease[0])
        assert trio.from_thread.run(lending.counts) == (0, 2)
        lease.ack(lease[1])
        assert trio.from_thread.run(lending.counts) == (0, 2)
        lease.ack(lease[2])
        assert trio.from_thread.run(lending.counts) == (0, 0)

    await with_client(served, work)


async def test_item_cannot_be_settled_twice(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a", b"b")

    def work(client: Client) -> None:
        with client.lease("crm") as lease:
            lease.ack(lease[0])
            with pytest.raises(ValueError, match="settled before"):
                lease.nack(lease[0])
            with pytest.raises(ValueError, match="settled before"):
                lease.ack([lease[1], lease[0]])
            assert lease.open_items() == [lease[1]]

    await with_client(served, work)


async def test_report_that_comes_too_late_names_the_items(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a", b"b", b"c")

    def work(client: Client) -> list[bytes]:
        lease = client.lease("crm", lease_s=1)
        trio.from_thread.run(lending.expire, 1000)
        lease.release(lease[2])
        with pytest.raises(LeaseLost) as caught:
            lease.ack(lease[:2])
        assert not lease.open_items()
        return [item.payload for item in caught.value.items]

    assert await with_client(served, work) == [b"a", b"b"]
    assert [ended.delivered for ended in lending.ended] == [0]
    assert await lending.counts() == (3, 0)


async def test_block_that_took_too_long_raises(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")

    def work(client: Client) -> None:
        with client.lease("crm", lease_s=1):
            trio.from_thread.run(lending.expire, 1000)

    with pytest.raises(LeaseLost):
        await with_client(served, work)


async def test_extended_lease_is_not_lost(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")

    def work(client: Client) -> None:
        with client.lease("crm", lease_s=1) as lease:
            lease.extend(100)
            trio.from_thread.run(lending.expire, 5000)
        with pytest.raises(ValueError, match="out of range"):
            lease.extend(0)

    await with_client(served, work)
    assert len(lending.ended) == 1


async def test_extension_that_comes_too_late_names_the_items(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")

    def work(client: Client) -> list[forebay.Item]:
        with client.lease("crm", lease_s=1) as lease:
            trio.from_thread.run(lending.expire, 1000)
            with pytest.raises(LeaseLost) as caught:
                lease.extend(100)
            assert caught.value.items == list(lease)
        return caught.value.items

    assert len(await with_client(served, work)) == 1


async def test_empty_lease_is_falsy_and_can_be_left(served: Served) -> None:
    def work(client: Client) -> bool:
        with client.lease("crm") as lease:
            assert lease.until_ms == 0
            return bool(lease)

    assert not await with_client(served, work)


async def test_wait_may_be_longer_than_the_clients_timeout(
    served: Served, lending: Lending
) -> None:
    async with trio.open_nursery() as nursery:
        got: list[bytes] = []

        def work(client: Client) -> None:
            with client.lease("crm", wait_s=60) as items:
                got.extend(item.payload for item in items)

        async def consume() -> None:
            await with_client(served, work, patience_s=0.2)

        nursery.start_soon(consume)
        # Three waits of 0.1 s have been answered with nothing by then.
        while lending.asked < 4:
            await lending.was_asked.wait()
        await lending.enter_items(b"a")
    assert got == [b"a"]


async def test_store_that_is_away_for_a_moment_is_waited_for(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")
    lending.away_for = 1

    def work(client: Client) -> None:
        with client.lease("crm"):
            pass

    await with_client(served, work)
    assert len(lending.ended) == 1


async def test_run_that_cannot_be_unpacked_is_reported_as_failed(
    served: Served, lending: Lending
) -> None:
    good = encode_run([b"abcdefgh"] * 3, queue="crm", compressed=False)
    bad = bytearray(good)
    bad[-4:] = b"\xff\xff\xff\x7f"
    await lending.enter(with_right_checksum(bytes(bad)))
    await lending.enter_items(b"fine")

    def work(client: Client) -> list[bytes]:
        with client.lease("crm") as lease:
            assert lease.unreadable == 1
            return [item.payload for item in lease]

    assert await with_client(served, work) == [b"fine"]
    spoiled, fine = lending.ended
    [(bits, failure)] = spoiled.failed
    assert (bits, failure.is_permanent) == (0b111, True)
    assert "cannot be unpacked" in failure.text
    assert fine.delivered == 1


def with_right_checksum(run: bytes) -> bytes:
    from forebay.head import CHECKSUM_AT, CHECKSUM_END, _sum, crc32c

    assert crc32c is not None
    crc = _sum(crc32c, run)
    return run[:CHECKSUM_AT] + crc.to_bytes(4, "little") + run[CHECKSUM_END:]


async def test_queue_name_is_checked_before_anything_is_sent(served: Served) -> None:
    def work(client: Client) -> None:
        with pytest.raises(forebay.BadRun):
            client.lease("no/queue")
        with pytest.raises(Refused, match="items"):
            client.lease("crm", 0)

    await with_client(served, work)


async def test_dead_letters_are_read_page_by_page(served: Served, store: DeadStore) -> None:
    def work(client: Client) -> list[list[str]]:
        control = Control(client.control)
        which = {"queue": "crm"}
        return [
            [letter["id"] for letter in control.dead_letters(which)],
            [letter["id"] for letter in control.dead_letters(which, limit=3, payloads=True)],
        ]

    everything, some = await with_client(served, work)
    assert everything == [f"id-{index}" for index in range(5)]
    assert some == everything[:3]
    assert [(op, fields["cursor"]) for op, fields in store.asked[:3]] == [
        ("dead.find", None),
        ("dead.find", "2"),
        ("dead.find", "4"),
    ]
    assert [fields["limit"] for _, fields in store.asked[3:]] == [3, 1]


async def test_changes_are_made_step_by_step(served: Served, store: DeadStore) -> None:
    seen: list[int] = []

    def work(client: Client) -> tuple[int, int]:
        control = Control(client.control)
        done = control.dead_retry({"queue": "crm"}, progress=seen.append)
        return done, control.dead_count({})

    assert await with_client(served, work) == (5, 5)
    assert seen == [2, 4, 5]


async def test_payload_that_is_no_text_is_sent_in_base64(served: Served, store: DeadStore) -> None:
    def work(client: Client) -> None:
        control = Control(client.control)
        for payload in (b"text", b"\xff\x00"):
            with pytest.raises(Refused, match="NOT_FOUND"):
                control.dead_edit("x-1", payload)

    await with_client(served, work)
    assert [fields for _, fields in store.asked] == [
        {"id": "x-1", "payload": "text"},
        {"id": "x-1", "payload_b64": "/wA="},
    ]
    assert letter_payload({"payload_b64": "/wA="}) == b"\xff\x00"
    assert letter_payload({"payload": "é"}) == "é".encode()


def test_reports_are_cut_into_frames_that_are_taken() -> None:
    failed = LeaseReport(
        1, tuple(Part(What.FAILED, 1 << index, "x" * 1000) for index in range(4096))
    )
    small = LeaseReport(2, (Part(What.DELIVERED),))
    cut = list(batches([failed, failed, *[small] * 5000]))
    assert [report for some in cut for report in some] == [failed, failed, *[small] * 5000]
    assert [len(some) for some in cut] == [1, 1, LEASES_MAX, 5000 - LEASES_MAX]
    for some in cut:
        assert len(lease_frames.pack_settle("q" * 128, some)) <= SETTLE_BYTES_MAX
