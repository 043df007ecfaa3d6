"""The file handler: what a reader of the file sees."""

import json
from pathlib import Path

import pytest

from actors.messages import StoredRun
from actors.ports import DeliveryFailed, Undeliverable
from actors.settings import QueueSettings
from daemon.handlers import open_handler
from daemon.handlers.file import FileDelivery
from daemon.handlers.null import NullDelivery
from forebay.run import encode_run, read_head


def stored(data: bytes) -> StoredRun:
    return StoredRun(0, len(data), read_head(data), data)


RUN = stored(
    encode_run(
        [b'{"a":1}', b"\xff\x00", "ä".encode()],
        queue="crm",
        keys=[b"k1", b"", b"k3"],
        flow="nightly",
        action="upsert",
        priority=0,
        headers={"correlation-id": "c-7"},
        attempt=2,
    )
)


async def test_each_item_is_a_line_with_all_its_fields(tmp_path: Path) -> None:
    handler = FileDelivery(tmp_path / "new" / "out.ndjson", fsync=True)
    await handler.deliver(RUN, done=0)
    await handler.aclose()
    lines = (tmp_path / "new" / "out.ndjson").read_text().splitlines()
    first, second, third = map(json.loads, lines)
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


async def test_items_that_are_done_are_left_out(tmp_path: Path) -> None:
    handler = FileDelivery(tmp_path / "out", fsync=False)
    await handler.deliver(RUN, done=0b101)
    await handler.aclose()
    (line,) = (tmp_path / "out").read_text().splitlines()
    assert json.loads(line)["id"].endswith("-1")


async def test_line_that_a_crash_cut_short_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"id":"cut')
    handler = FileDelivery(path, fsync=False)
    await handler.deliver(RUN, done=0b110)
    await handler.aclose()
    cut, whole = path.read_text().splitlines()
    assert cut == '{"id":"cut'
    assert json.loads(whole)["key"] == "k1"


async def test_file_that_cannot_be_written_fails_and_works_later(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    handler = FileDelivery(path, fsync=False)
    with pytest.raises(DeliveryFailed, match="Is a directory"):
        await handler.deliver(RUN, done=0)
    path.rmdir()
    await handler.deliver(RUN, done=0)
    await handler.aclose()
    assert len(path.read_text().splitlines()) == 3


async def test_run_that_cannot_be_unpacked_is_undeliverable(tmp_path: Path) -> None:
    data = bytearray(encode_run([b"abc"], queue="q", compressed=False))
    data[-7:-3] = (9).to_bytes(4, "little")
    handler = FileDelivery(tmp_path / "out", fsync=False)
    with pytest.raises(Undeliverable):
        await handler.deliver(stored(bytes(data)), done=0)
    await handler.aclose()


def test_handler_is_chosen_by_the_queue_s_settings(tmp_path: Path) -> None:
    def chosen(handler: dict[str, str]) -> object:
        return open_handler("crm", QueueSettings.model_validate({"handler": handler}))

    assert isinstance(chosen({"type": "null"}), NullDelivery)
    assert isinstance(chosen({"type": "file", "path": f"{tmp_path}/{{queue}}"}), FileDelivery)
    assert chosen({"type": "pull"}) is None
