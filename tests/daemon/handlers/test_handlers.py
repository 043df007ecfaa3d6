"""The file handler with one file, and the null handler: what a reader sees."""

import json
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.config.queue import QueueSettings
from actors.model.outcomes import Report
from actors.ports.handler import DeliveryFailed
from daemon.handlers import open_handler
from tests.daemon.handlers.batches import damaged_slice, deliver, failures, opened, slice_of
from tests.daemon.handlers.zone import file, payloads

# Choosing.


def test_items_that_are_pulled_have_no_handler() -> None:
    assert open_handler("crm", QueueSettings.model_validate({"handler": {"type": "pull"}})) is None


async def test_null_takes_everything_even_what_is_damaged() -> None:
    handler = opened({"type": "null"})
    assert await deliver(handler, slice_of([b"x"]), damaged_slice()) == Report()
    await handler.aclose()


# One file that grows.


async def test_each_item_is_a_line_with_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "new" / "er" / "crm.ndjson"
    handler = file(tmp_path / "new" / "er" / "{queue}.ndjson", fsync=True)
    part = slice_of(
        [b'{"a":1}', b"\xff\x00", "ä".encode()],
        attempt=2,
        keys=[b"k1", b"", b"k3"],
        flow="nightly",
        action="upsert",
        priority=0,
        headers={"correlation-id": "c-7"},
    )
    assert await deliver(handler, part) == Report()
    await handler.aclose()
    first, second, third = map(json.loads, path.read_text().splitlines())
    run_id = first["id"].removesuffix("-0")
    assert first == {
        "id": f"{run_id}-0",
        "queue": "crm",
        "key": "k1",
        "attempt": 2,
        "priority": 0,
        "flow": "nightly",
        "action": "upsert",
        "headers": {"correlation-id": "c-7"},
        "payload": '{"a":1}',
    }
    assert second["payload_b64"] == "/wA="
    assert second["key"] is None
    assert "payload" not in second
    assert third["payload"] == "ä"


async def test_items_of_a_slice_alone_are_written(tmp_path: Path) -> None:
    handler = file(tmp_path / "out")
    await deliver(handler, slice_of([b"0", b"1", b"2"], bits=0b010), slice_of([b"3"]))
    await handler.aclose()
    assert payloads(tmp_path / "out") == ["1", "3"]


async def test_line_that_a_crash_cut_short_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"id":"cut')
    handler = file(path)
    await deliver(handler, slice_of([b"x"]))
    await handler.aclose()
    cut, after = path.read_text().splitlines()
    assert cut == '{"id":"cut'
    assert json.loads(after)["payload"] == "x"


async def test_file_that_cannot_be_written_fails_and_works_later(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    handler = file(path)
    with pytest.raises(DeliveryFailed, match="Is a directory"):
        await deliver(handler, slice_of([b"x"]))
    path.rmdir()
    assert await deliver(handler, slice_of([b"x"])) == Report()
    await handler.aclose()
    assert payloads(path) == ["x"]


async def test_what_cannot_be_unpacked_is_rejected_and_the_rest_written(tmp_path: Path) -> None:
    handler = file(tmp_path / "out")
    report = await deliver(handler, slice_of([b"x"]), damaged_slice())
    assert list(failures(report)) == [(1, 0)]
    assert failures(report)[1, 0].is_permanent
    assert list(failures(await deliver(handler, damaged_slice()))) == [(0, 0)]
    await handler.aclose()
    assert payloads(tmp_path / "out") == ["x"]


async def test_senders_share_the_file_and_lines_stay_whole(tmp_path: Path) -> None:
    handler = file(tmp_path / "out")
    async with trio.open_nursery() as nursery:
        for sender in range(20):
            nursery.start_soon(deliver, handler, slice_of([b"%d" % sender * 5000] * 20))
    await handler.aclose()
    assert len(payloads(tmp_path / "out")) == 400


async def test_write_that_hangs_fails_at_the_deadline(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    fifo = tmp_path / "out"
    os.mkfifo(fifo)
    # A pipe that nobody reads takes 64 KiB and then waits, as a server that is gone would.
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    handler = file(fifo, timeout="30s")
    errors: list[DeliveryFailed] = []

    async def send() -> None:
        try:
            await deliver(handler, slice_of([b"x" * 100_000]))
        except DeliveryFailed as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert not errors
        mock_clock.jump(30)
    assert "not written after 30s" in str(errors[0])
    os.close(reader)
