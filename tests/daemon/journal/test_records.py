"""The record log: what is found again after a torn end, damage, and disks that fail."""

import errno
from pathlib import Path

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from actors.ports.journal import Damage, Record
from actors.spooler.writes import Writes
from daemon.journal.ballast import NAME as BALLAST
from daemon.journal.ballast import Ballast
from daemon.journal.files import Files
from daemon.journal.records import RECORDS, RecordLog, parse_records, read_records
from tests.crash.failing_files import Call, FailingFiles

ROOT = Path(__file__).parents[3]
BALLAST_BYTES = 4096


def record(number: int) -> Record:
    return {"is": "version", "app": f"app-{number}", "version": number, "write": "ab" * 16}


def open_log(files: Files) -> RecordLog:
    """A log as a start makes it: what is there is read, then loaded."""
    files.create_directory()
    log = RecordLog(files, Ballast(files, BALLAST_BYTES))
    log.load(found(files))
    return log


def found(files: Files, damage: Damage | None = None) -> list[Record]:
    with capture_logs():
        return read_records(files, damage if damage is not None else Damage())


def write_log(directory: Path, *numbers: int) -> Path:
    files = Files(directory)
    log = open_log(files)
    log.append([record(number) for number in numbers])
    log.close()
    return directory / RECORDS


def quarantined(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in (directory / "quarantine").iterdir()]


def test_records_are_read_as_written_over_many_lives(tmp_path: Path) -> None:
    for life in range(3):
        log = open_log(Files(tmp_path))
        log.append([record(2 * life)])
        log.append([record(2 * life + 1)])
        log.close()
    assert found(Files(tmp_path)) == [record(number) for number in range(6)]


def test_lines_in_the_document_are_what_is_written(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    _, _, section = document.partition("### writes.log\n")
    example = section.split("```\n")[1].encode()
    records, damaged = parse_records(example)
    assert (len(records), damaged) == (5, 0)
    assert Writes().restore(records) == 0
    log = open_log(Files(tmp_path))
    log.append(records)
    log.close()
    assert (tmp_path / RECORDS).read_bytes() == example
    for line in records:
        for member in line:
            assert f"`{member}`" in section.split("\n### ")[0]


def test_torn_end_is_no_damage_and_is_gone_with_the_next_record(tmp_path: Path) -> None:
    whole = write_log(tmp_path, 1, 2, 3).read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole)):
        (tmp_path / RECORDS).write_bytes(whole[:cut])
        damage = Damage()
        assert found(Files(tmp_path), damage) == [record(1), record(2)]
        assert not damage
    write_log(tmp_path, 4)
    assert found(Files(tmp_path)) == [record(1), record(2), record(4)]


@pytest.mark.parametrize("flip", [0x01, 0x80, 0x2A])
def test_flipped_byte_costs_one_record_and_the_file_is_kept_aside(
    tmp_path: Path, flip: int
) -> None:
    path = write_log(tmp_path, 1, 2, 3)
    whole = path.read_bytes()
    first, second = whole.index(b"\n") + 1, whole.rindex(b"\n", 0, -1)
    for at in range(first, second):
        damaged = bytearray(whole)
        damaged[at] ^= flip
        records, lines = parse_records(bytes(damaged))
        assert records == [record(1), record(3)]
        # A flip that makes a newline leaves two lines that are none.
        assert lines in (1, 2)
    path.write_bytes(damaged)
    damage = Damage()
    assert found(Files(tmp_path), damage) == [record(1), record(3)]
    assert (damage.records, damage.files) == (1, [RECORDS])
    assert quarantined(tmp_path) == [bytes(damaged)]


@pytest.mark.parametrize("line", [b"[1]", b"7", b"{", b"\xff"])
def test_whole_line_that_is_no_object_is_damage(tmp_path: Path, line: bytes) -> None:
    data = b"%08x %s\n" % (crc32c(line), line)
    assert parse_records(data) == ([], 1)


def test_file_that_cannot_be_read_is_not_lost_to_the_next_record(tmp_path: Path) -> None:
    whole = write_log(tmp_path, 1).read_bytes()
    files = FailingFiles(tmp_path)
    files.break_down("read_file", errno.EIO, RECORDS)
    damage = Damage()
    assert found(files, damage) == []
    assert damage.records
    write_log(tmp_path, 2)
    assert quarantined(tmp_path) == [whole]


@pytest.mark.parametrize("call", ["append", "datasync"])
def test_record_that_was_refused_is_not_there_at_the_next_start(tmp_path: Path, call: Call) -> None:
    files = FailingFiles(tmp_path)
    log = open_log(files)
    log.append([record(1)])
    files.break_down(call, errno.EIO, RECORDS, times=1)
    with pytest.raises(OSError, match="Input/output"):
        log.append([record(2)])
    # A crash now: the log is not closed.
    assert found(Files(tmp_path)) == [record(1)]
    log.append([record(3)])
    assert found(Files(tmp_path)) == [record(1), record(3)]
    files.let_go()


def test_disk_that_fails_for_longer_takes_records_when_it_is_mended(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    log = open_log(files)
    log.append([record(1)])
    files.break_down("datasync", errno.EIO, f"{RECORDS}*")
    for number in (2, 3):
        with pytest.raises(OSError, match="Input/output"):
            log.append([record(number)])
    files.mend()
    log.append([record(4)])
    assert found(Files(tmp_path)) == [record(1), record(4)]
    files.let_go()


def test_full_disk_gives_up_the_ballast_for_a_record(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    log = open_log(files)
    Ballast(files, BALLAST_BYTES).keep()
    log.append([record(1)])
    files.break_down("append", errno.ENOSPC, RECORDS, times=1)
    log.append([record(2)])
    assert not (tmp_path / BALLAST).exists()
    assert found(Files(tmp_path)) == [record(1), record(2)]
    files.let_go()


def test_kept_log_holds_what_is_needed_alone(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    log = open_log(files)
    log.append([record(number) for number in range(9)])
    log.keep([record(8)])
    assert found(Files(tmp_path)) == [record(8)]
    log.append([record(9)])
    assert found(Files(tmp_path)) == [record(8), record(9)]
    files.let_go()


@pytest.mark.parametrize("call", ["open_new", "write", "datasync", "rename", "sync_directory"])
def test_log_that_cannot_be_written_anew_is_whole_as_it_was(tmp_path: Path, call: Call) -> None:
    files = FailingFiles(tmp_path)
    log = open_log(files)
    log.append([record(1), record(2)])
    pattern = "*" if call == "sync_directory" else f"{RECORDS}*"
    files.break_down(call, errno.EIO, pattern, times=1)
    with pytest.raises(OSError, match="Input/output"):
        log.keep([record(2)])
    assert found(Files(tmp_path))[-1] == record(2)
    log.append([record(3)])
    assert found(Files(tmp_path)) == [record(2), record(3)]
    files.let_go()
