"""The file handler's Parquet: delivered means readable."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.model.outcomes import Report
from actors.ports.handler import DeliveryFailed, Handler
from daemon.errors import CannotStart
from tests.daemon.handlers.batches import damaged_slice, deliver, failures, slice_of
from tests.daemon.handlers.zone import file, names, parts, whole


def parquet(path: Path, **settings: Any) -> Handler:
    return file(path, format="parquet", **settings)


def read_parquet(path: Path) -> Any:
    return pytest.importorskip("pyarrow.parquet").ParquetFile(path)


async def test_parquet_has_a_column_for_every_field(tmp_path: Path) -> None:
    handler = parquet(tmp_path / "{queue}-{time}.parquet", fsync=True)
    part = slice_of(
        [b"\xff\x00", b"two"],
        attempt=2,
        keys=[b"k1", b""],
        flow="nightly",
        action="upsert",
        priority=200,
        headers={"correlation-id": "c-7"},
        enqueued_ms=1_700_000_000_123,
    )
    other = slice_of([b"0", b"1", b"2", b"3"], bits=0b1010)
    report = await deliver(handler, part, damaged_slice(), other)
    assert list(failures(report)) == [(1, 0)]
    # Delivered means readable: before anything is closed.
    (path,) = whole(tmp_path)
    assert path.name.startswith("crm-20")
    assert path.suffix == ".parquet"
    found = read_parquet(path)
    assert found.metadata.num_row_groups == 1
    first, second, third, fourth = found.read().to_pylist()
    assert first["id"].removesuffix("-0") == second["id"].removesuffix("-1")
    assert first | {"id": ""} == {
        "id": "",
        "queue": "crm",
        "key": "k1",
        "attempt": 2,
        "priority": 200,
        "flow": "nightly",
        "action": "upsert",
        "headers": [("correlation-id", "c-7")],
        "payload": b"\xff\x00",
        "enqueued_at": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
    }
    assert (second["key"], second["payload"]) == (None, b"two")
    assert (third["id"][-2:], third["payload"], third["headers"]) == ("-1", b"1", [])
    assert (fourth["id"][-2:], fourth["payload"], fourth["attempt"]) == ("-3", b"3", 0)
    await handler.aclose()


async def test_parquet_without_an_interval_is_a_file_a_batch(tmp_path: Path) -> None:
    handler = parquet(tmp_path / "{time}.parquet")
    for _ in range(3):
        await deliver(handler, slice_of([b"x"]))
    assert [read_parquet(path).metadata.num_rows for path in whole(tmp_path)] == [1, 1, 1]
    assert list(failures(await deliver(handler, damaged_slice()))) == [(0, 0)]
    assert len(names(tmp_path)) == 3


async def test_parquet_batches_within_the_interval_share_a_file_and_wait_for_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    handler = parquet(tmp_path / "{time}.parquet", roll_interval="10s")
    reports: list[Report] = []

    async def send(payload: bytes) -> None:
        reports.append(await deliver(handler, slice_of([payload] * 2)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, b"a")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(9)
        nursery.start_soon(send, b"b")
        await trio.testing.wait_all_tasks_blocked()
        assert not reports
        mock_clock.jump(1)
    assert reports == [Report(), Report()]
    (path,) = whole(tmp_path)
    found = read_parquet(path)
    assert not parts(tmp_path)
    assert found.metadata.num_row_groups == 2
    assert found.read().column("payload").to_pylist() == [b"a", b"a", b"b", b"b"]


async def test_parquet_file_that_is_full_does_not_wait(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    handler = parquet(tmp_path / "{time}.parquet", roll_interval="10s", roll_bytes="1Ki")
    # The clock stands still: whoever waits for it never returns.
    await deliver(handler, slice_of([b"x" * 2000]))
    assert len(whole(tmp_path)) == 1


async def test_parquet_sends_fail_together_when_their_file_cannot_be_written(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    (tmp_path / "zone").touch()
    handler = parquet(tmp_path / "zone" / "{time}.parquet", roll_interval="10s")
    texts: list[str] = []

    async def send() -> None:
        with pytest.raises(DeliveryFailed) as failed:
            await deliver(handler, slice_of([b"x"]))
        texts.append(failed.value.failure.text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(10)
    assert len(texts) == 2
    assert all(text.endswith(("Not a directory", "File exists")) for text in texts)
    (tmp_path / "zone").unlink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, handler, slice_of([b"x"]))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(10)
    assert len(whole(tmp_path / "zone")) == 1


async def test_parquet_send_that_is_cancelled_takes_those_who_wait_along(tmp_path: Path) -> None:
    handler = parquet(tmp_path / "{time}.parquet", roll_interval="10s")
    leader = trio.CancelScope()
    errors: list[DeliveryFailed] = []

    async def lead() -> None:
        with leader:
            await deliver(handler, slice_of([b"x"]))

    async def follow() -> None:
        try:
            await deliver(handler, slice_of([b"y"]))
        except DeliveryFailed as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        leader.cancel()
    assert not errors[0].failure.blames_destination
    assert not names(tmp_path)


async def test_parquet_that_a_crash_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "20261116T101500Z-0000.parquet.part").write_bytes(b"PAR1 and no footer")
    handler = parquet(tmp_path / "{time}.parquet")
    await deliver(handler, slice_of([b"x"]))
    (path,) = whole(tmp_path)
    assert read_parquet(path).metadata.num_rows == 1
    assert not parts(tmp_path)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CannotStart, match=r"queues\.crm\.handler\.format.*pip install pyarrow"):
        parquet(tmp_path / "{time}.parquet")
