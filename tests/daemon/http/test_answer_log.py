"""Answers of bulk adds that wait for their clients: in order, and bounded, each and together."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daemon.http import bulk_answers as answer_log
from daemon.http.bulk_answers import STALL_S, AnswerLog, AnswerRoom, Stalled
from tests.eventually import eventually

LINE = b"x" * 99 + b"\n"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_log, "MEMORY_BYTES", 300)
    monkeypatch.setattr(answer_log, "FILE_BYTES_MAX", 1000)
    monkeypatch.setattr(answer_log, "READ_BYTES", 250)


async def added(log: AnswerLog, lines: int) -> None:
    for _ in range(lines):
        await log.add(LINE)


class Room(AnswerRoom):
    """Knows who waits for some."""

    waiting = 0

    async def wait(self) -> None:
        self.waiting += 1
        try:
            await super().wait()
        finally:
            self.waiting -= 1


async def filled(log: AnswerLog, room: Room) -> None:
    """Lines, until there is no room for another."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(added, log, 10**6)
        await eventually(lambda: room.waiting == 1)
        nursery.cancel_scope.cancel()


async def test_lines_come_out_as_they_went_in_through_memory_and_file(tmp_path: Path) -> None:
    room = AnswerRoom()
    log = AnswerLog(tmp_path, room=room)
    wanted = b"".join(b"%d\n" % number for number in range(2000))
    found: list[bytes] = []

    async def take() -> None:
        while data := await log.take():
            found.append(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        for line in wanted.splitlines(keepends=True):
            await log.add(line)
        log.end()
    assert b"".join(found) == wanted
    log.close()
    assert room.bytes == 0


async def test_a_file_is_bounded_however_much_of_it_was_read(tmp_path: Path) -> None:
    room = Room()
    log = AnswerLog(tmp_path, room=room)
    await filled(log, room)
    full = room.bytes
    assert full <= 1000
    await log.take()
    # The beginning of a file cannot be given back: only all of it.
    assert room.bytes == full
    while room.bytes:
        await log.take()
    await added(log, 5)
    assert 0 < room.bytes <= 1000
    log.close()


async def test_files_are_bounded_together_and_give_back_what_they_had(tmp_path: Path) -> None:
    room = Room(bytes_max=900)
    one, other = AnswerLog(tmp_path, room=room), AnswerLog(tmp_path, room=room)
    await filled(one, room)
    assert room.bytes > 0
    await filled(other, room)
    assert room.bytes <= 900
    async with trio.open_nursery() as nursery:
        nursery.start_soon(added, other, 4)
        await eventually(lambda: room.waiting == 1)
        one.close()
    other.close()
    assert room.bytes == 0


def low() -> bool:
    return True


def not_low() -> bool:
    return False


@pytest.mark.parametrize(
    "disk_is_low, bytes_max", [(low, 10**6), (not_low, 100)], ids=["disk", "room"]
)
async def test_a_client_that_reads_nothing_is_given_up_where_there_is_no_room(
    disk_is_low: Callable[[], bool], bytes_max: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    log = AnswerLog(tmp_path, disk_is_low, AnswerRoom(bytes_max))
    gave_up = False

    async def add() -> None:
        nonlocal gave_up
        try:
            await added(log, 100)
        except Stalled:
            gave_up = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add)
        await wait_all_tasks_blocked()
        mock_clock.jump(STALL_S - 1)
        await wait_all_tasks_blocked()
        assert await log.take()
        # It has read: now it has as long again.
        await wait_all_tasks_blocked()
        mock_clock.jump(STALL_S - 1)
        await wait_all_tasks_blocked()
        assert not gave_up
        mock_clock.jump(2)
    assert gave_up
    log.close()
