"""The file handler with files that are rolled: what whoever watches the directory sees."""

import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic import ValidationError
from trio.testing import MockClock

from actors.config.handlers import FileHandler
from actors.model.outcomes import Report
from actors.ports.handler import DeliveryFailed, NoPace
from daemon.handlers.file import landing
from daemon.handlers.file.handler import FileDelivery
from daemon.handlers.file.landing import Landing
from daemon.handlers.file.line_files import whole_lines
from tests.daemon.handlers.batches import deliver, slice_of
from tests.daemon.handlers.zone import all_payloads, file, names, parts, payloads, whole


async def test_file_is_a_part_until_it_is_closed(tmp_path: Path) -> None:
    handler = file(tmp_path / "{queue}-{time}.jsonl", fsync=True)
    await deliver(handler, slice_of([b"a"]))
    await deliver(handler, slice_of([b"b"]))
    (part,) = parts(tmp_path)
    assert payloads(part) == ["a", "b"]
    assert not whole(tmp_path)
    await handler.aclose()
    (path,) = whole(tmp_path)
    assert path.name + ".part" == part.name
    assert payloads(path) == ["a", "b"]
    assert not parts(tmp_path)


async def test_file_is_rolled_when_it_has_enough_bytes(tmp_path: Path) -> None:
    handler = file(tmp_path / "{time}.jsonl", roll_bytes="1Ki")
    await deliver(handler, slice_of([b"a"]))
    await deliver(handler, slice_of([b"b" * 1024]))
    assert [len(payloads(path)) for path in whole(tmp_path)] == [2]
    assert not parts(tmp_path)
    await deliver(handler, slice_of([b"c"]))
    assert len(parts(tmp_path)) == 1
    await handler.aclose()


async def test_file_is_rolled_on_time_though_nothing_more_arrives(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    handler = file(tmp_path / "{time}.jsonl", roll_interval="1h")
    assert isinstance(handler, FileDelivery)
    await deliver(handler, slice_of([b"a"]))
    await handler.attended.wait()
    handler.attended = trio.Event()
    mock_clock.jump(3599)
    await deliver(handler, slice_of([b"b"]))
    await trio.testing.wait_all_tasks_blocked()
    assert not whole(tmp_path)
    mock_clock.jump(1)
    await handler.attended.wait()
    assert [payloads(path) for path in whole(tmp_path)] == [["a", "b"]]
    await deliver(handler, slice_of([b"c"]))
    await handler.aclose()
    assert all_payloads(tmp_path) == ["a", "b", "c"]


async def test_what_a_crash_left_is_finished_without_its_torn_line(tmp_path: Path) -> None:
    left = tmp_path / "crm-20261116T101500Z-0000.jsonl.part"
    left.write_bytes(b'{"payload":"x"}\n{"payload":"to')
    torn = tmp_path / "crm-20261116T101500Z-0001.jsonl.part"
    torn.write_bytes(b'{"payload":"to')
    others = ["crm-2026.jsonl.part", "web-20261116T101500Z-0000.jsonl.part"]
    for name in others:
        (tmp_path / name).write_bytes(b"{}\n")
    handler = file(tmp_path / "{queue}-{time}.jsonl")
    assert left.exists()
    assert isinstance(handler, FileDelivery)
    handler.open_sender(NoPace())
    await handler.attended.wait()
    assert names(tmp_path) == sorted(["crm-20261116T101500Z-0000.jsonl", *others])
    assert payloads(tmp_path / "crm-20261116T101500Z-0000.jsonl") == ["x"]
    await handler.aclose()


async def test_two_handlers_of_one_pattern_leave_each_other_alone(tmp_path: Path) -> None:
    handlers = [file(tmp_path / "{time}.jsonl", roll_interval="1h") for _ in range(3)]
    for number, handler in enumerate(handlers):
        await deliver(handler, slice_of([b"%d" % number]))
        assert isinstance(handler, FileDelivery)
        await handler.attended.wait()
    assert len(parts(tmp_path)) == 3
    assert not whole(tmp_path)
    for handler in handlers:
        await handler.aclose()
    assert sorted(all_payloads(tmp_path)) == ["0", "1", "2"]


async def test_link_that_another_user_may_have_put_there_is_not_followed(tmp_path: Path) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.write_text("untouched\n")
    (shared / "out.jsonl").symlink_to(victim)
    (shared / "crm-20261116T101500Z-0000.jsonl.part").symlink_to(victim)
    (shared / "elsewhere").symlink_to(tmp_path)
    for name in ("out.jsonl", "elsewhere/out.jsonl"):
        with pytest.raises(DeliveryFailed, match="is a symbolic link"):
            await deliver(file(shared / name), slice_of([b"a"]))
    rolled = file(shared / "{queue}-{time}.jsonl")
    assert isinstance(rolled, FileDelivery)
    await deliver(rolled, slice_of([b"a"]))
    await rolled.attended.wait()
    await rolled.aclose()
    assert victim.read_text() == "untouched\n"
    assert not (tmp_path / "out.jsonl").exists()


async def test_second_name_of_a_file_is_not_written_to_where_others_may_write(
    tmp_path: Path,
) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.write_text("untouched\n")
    (shared / "out.jsonl").hardlink_to(victim)
    with pytest.raises(DeliveryFailed, match="not a file of the daemon's own"):
        await deliver(file(shared / "out.jsonl"), slice_of([b"a"]))
    assert victim.read_text() == "untouched\n"


async def test_links_of_the_operator_are_followed(tmp_path: Path) -> None:
    target = tmp_path / "target.jsonl"
    (tmp_path / "out.jsonl").symlink_to(target)
    await deliver(file(tmp_path / "out.jsonl"), slice_of([b"a"]))
    assert payloads(target) == ["a"]


def frozen(path: Path, second: Callable[[], int] = lambda: 0, **settings: Any) -> Landing:
    start = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)
    handler = FileHandler(path=path, **settings)
    return Landing("crm", handler, lambda: start + timedelta(seconds=second()))


def test_names_tell_the_time_and_are_never_used_twice(tmp_path: Path) -> None:
    (tmp_path / "20261116T101500Z-0001.jsonl").touch()
    seconds = iter([0, 0, 1, 1])
    landing_zone = frozen(tmp_path / "{time}.jsonl", lambda: next(seconds))
    begun = [landing_zone.begin() for _ in range(4)]
    assert [part.path.name for part in begun] == [
        "20261116T101500Z-0000.jsonl",
        "20261116T101500Z-0002.jsonl",
        "20261116T101501Z-0000.jsonl",
        "20261116T101501Z-0001.jsonl",
    ]
    for part in begun:
        landing_zone.finish(part)
    assert names(tmp_path) == ["20261116T101500Z-0001.jsonl"]


def test_part_that_was_taken_before_it_was_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = landing.is_taken

    def somebody_is_quicker(fd: int, path: Path) -> bool:
        monkeypatch.setattr(landing, "is_taken", taken)
        other = frozen(tmp_path / "{time}.jsonl")
        for part in other.left_over():
            other.finish(part)
        return taken(fd, path)

    monkeypatch.setattr(landing, "is_taken", somebody_is_quicker)
    landing_zone = frozen(tmp_path / "{time}.jsonl")
    part = landing_zone.begin()
    part.size = os.write(part.fd, b"{}\n")
    landing_zone.finish(part)
    assert names(tmp_path) == ["20261116T101500Z-0001.jsonl"]


async def test_batch_that_cannot_be_written_as_a_whole_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = file(tmp_path / "{time}.jsonl")
    await deliver(handler, slice_of([b"a"]))

    def full_disk(fd: int, data: bytes) -> None:
        os.write(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("daemon.handlers.file.line_files.write_all", full_disk)
        with pytest.raises(DeliveryFailed, match="No space left"):
            await deliver(handler, slice_of([b"b"]))
    assert [payloads(path) for path in whole(tmp_path)] == [["a"]]
    await deliver(handler, slice_of([b"b"]))
    await handler.aclose()
    assert all_payloads(tmp_path) == ["a", "b"]


async def test_file_that_cannot_be_finished_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = file(tmp_path / "{time}.jsonl", roll_bytes="1")
    assert isinstance(handler, FileDelivery)
    finish = Landing.finish

    def once(self: Landing, part: landing.Part) -> None:
        monkeypatch.setattr(Landing, "finish", finish)
        os.close(part.fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    handler.open_sender(NoPace())
    await handler.attended.wait()
    handler.attended = trio.Event()
    monkeypatch.setattr(Landing, "finish", once)
    assert await deliver(handler, slice_of([b"a"])) == Report()
    await handler.attended.wait()
    assert [payloads(path) for path in whole(tmp_path)] == [["a"]]
    await handler.aclose()


def test_whole_lines_are_found_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data, expected in [
        (b"", 0),
        (b"a", 0),
        (b"a\n", 2),
        (b"a\nb", 2),
        (b"a\n" + b"b" * 300_000, 2),
        (b"b" * 300_000, 0),
    ]:
        path.write_bytes(data)
        with path.open("rb") as opened_file:
            assert whole_lines(opened_file.fileno(), len(data)) == expected


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"path": "/x/{time}/{time}"}, "belongs in the file's name"),
        ({"path": "/x/y", "roll_bytes": "1Mi"}, "needs {time}"),
        ({"path": "/x/y", "format": "parquet"}, "needs {time}"),
        ({"path": "/{time}", "format": "parquet", "roll_interval": "20s"}, "half of timeout"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        FileHandler.model_validate(settings)
