"""`forebay spool export` and `import`: a host's items on another host, each once, as they were."""

import json
import shutil
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from daemon.journal.export_file import MAGIC, DamagedExport, ExportReader
from daemon.journal.exporting import export, release
from daemon.journal.files import Files
from daemon.journal.inspect import list_chunks
from forebay import connect, encode_run
from forebay.writes import WRITE_HEADER, new_write_id
from tests.crash.forgetful_files import ForgetfulFiles
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

RUNS, RUN_ITEMS = 40, 25


def make(tmp_path: Path, name: str, config: dict[str, Any] | None = None) -> Host:
    directory = tmp_path / name
    directory.mkdir()
    return Host(directory, config)


def push(host: Host, queue: str = "crm", runs: int = RUNS) -> None:
    with connect(host.socket) as client:
        payloads = [f"{queue}{at}" for at in range(runs * RUN_ITEMS)]
        client.push(queue, payloads, run_items=RUN_ITEMS, headers={"trace": "t1"})


def dumped(host: Host) -> dict[str, dict[str, Any]]:
    """What the journal holds, by item id."""
    lines = [json.loads(line) for line in host.ok("spool", "dump").splitlines()]
    return {line["id"]: line for line in lines}


def drain(host: Host, queue: str, items: int) -> list[Any]:
    """So many items, acknowledged as they are taken."""
    taken: list[Any] = []
    with connect(host.socket) as client:
        while len(taken) < items:
            with client.lease(queue, items - len(taken), wait_s=HANG_S) as lease:
                assert lease, f"{len(taken)} of {items}"
                taken += lease
        with client.lease(queue, 1) as rest:
            assert not rest
    return taken


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host whose daemon was killed, with 1,000 items, of which 3 are done and 2 have failed."""
    host = Host(tmp_path_factory.mktemp("killed"))
    with running(host):
        push(host)
        with connect(host.socket) as client:
            lease = client.lease("crm", 5)
            items = list(lease)
            lease.nack(items[3:], delay_s=0.5, error="not now")
            lease.close()
        host.until_books({"accepted": 1000, "delivered": 3, "held": 997})
        host.stop(signal.SIGKILL)
    return host


@pytest.fixture
def lost(tmp_path: Path, killed: Host) -> Host:
    """The same disk, for one test."""
    host = make(tmp_path, "lost")
    shutil.copytree(killed.state_dir, host.state_dir)
    return host


def test_items_of_a_killed_daemon_are_delivered_once_by_another(tmp_path: Path, lost: Host) -> None:
    before = dumped(lost)
    assert len(before) == RUNS * RUN_ITEMS - 3
    file = tmp_path / "lost.fbx"
    assert "997 items in 41 runs, released" in lost.ok(
        "spool", "export", str(lost.state_dir), str(file), "--release"
    )
    other = make(tmp_path, "other")
    with running(other):
        assert "997 items in 41 runs" in other.ok("spool", "import", str(file))
        again = other.ok("spool", "import", str(file))
        assert "997 items in 41 runs, 41 of them stored before" in again
        taken = drain(other, "crm", 997)
        other.until_books({"accepted": 997, "delivered": 997, "duplicate": 997})
    assert {item.id: item.payload.decode() for item in taken} == {
        item: line["payload"] for item, line in before.items()
    }
    assert len(taken) == 997
    assert sorted(item.attempt for item in taken)[-3:] == [0, 1, 1]
    assert {item.headers["trace"] for item in taken} == {"t1"}


def test_what_was_released_is_moved_out_and_not_delivered_at_home(
    tmp_path: Path, lost: Host
) -> None:
    file = tmp_path / "lost.fbx"
    lost.ok("spool", "export", str(lost.state_dir), str(file), "--release")
    assert dumped(lost) == {}
    with running(lost):
        lost.until_books({"accepted": 1000, "delivered": 3, "moved_out": 997})
        assert drain(lost, "crm", 0) == []
    empty = lost.ok("spool", "export", str(lost.state_dir), str(tmp_path / "rest.fbx"))
    assert "0 items in 0 runs" in empty


def test_what_was_released_stays_so_when_the_power_goes(tmp_path: Path, lost: Host) -> None:
    files = ForgetfulFiles(lost.state_dir / "spool", cut_after=10**9)
    found = export(files, tmp_path / "lost.fbx", {"daemon": None}, lambda items: None)
    release(files, found)
    for seed in range(6):
        files.make_what_is_left(tmp_path / f"left{seed}", Random(seed))
        views = list_chunks(Files(tmp_path / f"left{seed}"))
        assert sum(view.held_items for view in views) == 0
        assert sum(view.totals["crm"].moved_out for view in views if view.totals) == 997


def test_without_release_nothing_changes_at_home(tmp_path: Path, lost: Host) -> None:
    before = {path.name: path.read_bytes() for path in (lost.state_dir / "spool").glob("*.*")}
    lost.ok("spool", "export", str(lost.state_dir / "spool"), str(tmp_path / "lost.fbx"))
    after = {path.name: path.read_bytes() for path in (lost.state_dir / "spool").glob("*.*")}
    assert after == before
    with running(lost):
        assert len(drain(lost, "crm", 997)) == 997


def test_two_exports_of_the_same_have_the_same_ids(tmp_path: Path, lost: Host) -> None:
    found = []
    for name in ("first.fbx", "second.fbx"):
        lost.ok("spool", "export", str(lost.state_dir), str(tmp_path / name))
        found.append([entry.run.head.run_id for entry in ExportReader(tmp_path / name)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 41


def test_file_has_errors_and_due_times_of_what_has_failed(tmp_path: Path, lost: Host) -> None:
    file = tmp_path / "lost.fbx"
    lost.ok("spool", "export", str(lost.state_dir), str(file))
    [failed] = [entry for entry in ExportReader(file) if entry.about]
    assert [error["text"] for error in failed.about["errors"]] == ["not now"]
    assert failed.run.head.attempt == 1
    assert failed.run.head.due_ms > failed.run.head.enqueued_ms
    assert failed.run.head.count == 2


def test_an_import_that_was_interrupted_is_repeated(tmp_path: Path, lost: Host) -> None:
    file = tmp_path / "lost.fbx"
    lost.ok("spool", "export", str(lost.state_dir), str(file))
    other = make(tmp_path, "other")
    with running(other):
        with connect(other.socket) as client:
            # As far as an import came that was killed.
            for entry in list(ExportReader(file))[:17]:
                client.submit(entry.run.data)
        other.stop(signal.SIGKILL)
        other.start()
        told = other.ok("spool", "import", str(file))
        assert "997 items in 41 runs, 17 of them stored before" in told
        assert len({item.id for item in drain(other, "crm", 997)}) == 997


def test_runs_that_are_too_long_for_the_other_daemon_are_cut(tmp_path: Path) -> None:
    host = make(tmp_path, "wide")
    payloads = [bytes([65 + at % 26]) * 400 for at in range(100)]
    with running(host):
        with connect(host.socket) as client:
            client.submit(encode_run(payloads, queue="crm"))
        host.stop(signal.SIGKILL)
    before = dumped(host)
    file = tmp_path / "wide.fbx"
    host.ok("spool", "export", str(host.state_dir), str(file))
    narrow = make(tmp_path, "narrow", {"socket": {"max_run_bytes": "16Ki"}})
    with running(narrow):
        for text in ("", ", 4 of them stored before"):
            assert f"100 items in 4 runs{text}" in narrow.ok("spool", "import", str(file))
        taken = drain(narrow, "crm", 100)
    assert {item.id: item.payload.decode() for item in taken} == {
        item: line["payload"] for item, line in before.items()
    }


def until_receipt(host: Host, write: bytes, wanted: dict[str, int]) -> None:
    """Waits until a receipt says this, and of everything else 0."""
    names = ("accepted", "delivered", "dead", "dropped", "deleted", "lost", "pending")

    def agree() -> None:
        with connect(host.socket) as client:
            receipt = client.receipt(write)
        found = {name: count for name in names if (count := getattr(receipt, name))}
        assert found == wanted

    eventually_sync(agree)


def take_one(host: Host) -> Any:
    with connect(host.socket) as client, client.lease("crm", 1, wait_s=HANG_S) as lease:
        [item] = lease
        return item


def test_staged_items_are_in_the_file_apart_and_receipts_follow_published_ones(
    tmp_path: Path,
) -> None:
    host = make(tmp_path, "host")
    with running(host):
        with connect(host.socket) as client:
            stages = {}
            for name in ("published", "open"):
                write = new_write_id()
                stage = client.stage(write)
                headers = {WRITE_HEADER: write.hex(), "kept": "yes"}
                rows = [name.encode()] * (1 + 3 * (name == "published"))
                stage.submit(encode_run(rows, queue="crm", headers=headers))
                stages[write] = stage.seal().stage
            first, second = stages
            client.publish(first, [stages[first]])
        take_one(host)
        assert host.stop() == 0
    file = tmp_path / "host.fbx"
    done = host.command("spool", "export", str(host.state_dir), str(file), "--release")
    assert b"3 items in 1 run, released" in done.stdout
    assert b"1 item of writes that were not published" in done.stderr
    staged = [entry for entry in ExportReader(file) if entry.is_staged]
    assert [entry.about for entry in staged] == [
        {"write": second.hex(), "stage": stages[second].hex()}
    ]
    # What is staged stays where it is.
    assert [line.get("staged") for line in dumped(host).values()] == [True]
    other = make(tmp_path, "other", {"defaults": {"max_retries": 0}})
    with running(other):
        for again in ("", ", 1 of them stored before"):
            assert f"3 items in 1 run{again}" in other.ok("spool", "import", str(file))
        until_receipt(other, first, {"accepted": 3, "pending": 3})
        item = take_one(other)
        headers = {"kept": "yes", WRITE_HEADER: first.hex()}
        assert (item.payload, item.headers) == (b"published", headers)
        with connect(other.socket) as client, client.lease("crm", 1, wait_s=HANG_S) as lease:
            lease.nack(lease, error="no")
        told = {"accepted": 3, "delivered": 1, "dead": 1, "pending": 1}
        until_receipt(other, first, told)
        other.stop(signal.SIGKILL)
        other.start()
        until_receipt(other, first, told)
        drain(other, "crm", 1)
        with connect(other.socket) as client:
            client.wait_receipt(first, timeout=HANG_S)
        until_receipt(other, first, {"accepted": 3, "delivered": 2, "dead": 1})
    with running(host):
        # Where it came from, it is none of what is there.
        until_receipt(host, first, {"accepted": 1, "delivered": 1})


def test_what_the_hosts_own_cold_store_has_is_told_and_stays(tmp_path: Path) -> None:
    host = make(tmp_path, "host", {"defaults": {"warm_max_items": 50}})
    with running(host):
        push(host)
        with connect(host.socket) as client:
            eventually_sync(lambda: client.stats()["daemon"]["cold"] > 0, "nothing is in cold")
        assert host.stop() == 0
    file = tmp_path / "host.fbx"
    done = host.command("spool", "export", str(host.state_dir), str(file), "--json")
    told = json.loads(done.stdout)
    assert told["cold_items"] > 0
    assert told["items"] + told["cold_items"] == RUNS * RUN_ITEMS
    done = host.command("spool", "export", str(host.state_dir), str(tmp_path / "again.fbx"))
    assert f"{told['cold_items']} items and 0 dead letters in cold.sqlite" in done.stderr.decode()


def test_export_is_refused_while_the_daemon_runs(tmp_path: Path) -> None:
    host = make(tmp_path, "host")
    with running(host):
        push(host, runs=1)
        assert host.daemon is not None
        file = tmp_path / "host.fbx"
        done = host.command("spool", "export", str(host.state_dir), str(file))
        assert done.returncode == 1
        assert f"in use by the daemon with process id {host.daemon.pid}" in done.stderr.decode()
        assert not file.exists()


def test_an_export_overwrites_nothing(tmp_path: Path, lost: Host) -> None:
    file = tmp_path / "lost.fbx"
    file.write_text("precious")
    done = lost.command("spool", "export", str(lost.state_dir), str(file))
    assert done.returncode == 1
    assert "File exists" in done.stderr.decode()
    assert file.read_text() == "precious"


def test_damaged_files_are_refused_with_the_offset_and_nothing_is_pushed(
    tmp_path: Path, lost: Host
) -> None:
    file = tmp_path / "lost.fbx"
    lost.ok("spool", "export", str(lost.state_dir), str(file))
    whole = file.read_bytes()
    offsets = [entry.offset for entry in ExportReader(file)]
    middle, last = offsets[20], offsets[-1]
    flipped = bytearray(whole)
    flipped[middle + 200] ^= 1
    cut_out = whole[:middle] + whole[offsets[21] :]
    for data, offset, why in (
        (bytes(flipped), middle, "a checksum does not match"),
        (cut_out, middle, "a checksum does not match"),
        (whole[: last + 30], last, "it ends too soon"),
        (whole[: len(whole) - 1], None, "it ends too soon"),
        (whole + b"x", len(whole), "something follows its end"),
        (b"FBRN" + whole, 0, "it is no export of a spool"),
        (b"", 0, "it is no export of a spool"),
    ):
        file.write_bytes(data)
        with pytest.raises(DamagedExport, match=why) as refused:
            ExportReader(file).check()
        assert offset is None or refused.value.offset == offset
    assert whole.startswith(MAGIC)
    file.write_bytes(bytes(flipped))
    other = make(tmp_path, "other")
    with running(other):
        done = other.command("spool", "import", str(file))
        assert done.returncode == 6
        assert f"damaged at byte {middle}: a checksum does not match" in done.stderr.decode()
        assert other.books() == {}


def test_a_run_that_cannot_be_read_stays_and_is_told(tmp_path: Path) -> None:
    host = make(tmp_path, "host")
    with running(host):
        push(host, runs=3)
        assert host.stop() == 0
    [chunk] = (host.state_dir / "spool").glob("*.chunk")
    data = bytearray(chunk.read_bytes())
    second = data.index(b"FBRN", data.index(b"FBRN") + 1)
    data[second + 100] ^= 1
    chunk.write_bytes(data)
    file = tmp_path / "host.fbx"
    done = host.command("spool", "export", str(host.state_dir), str(file), "--release")
    assert done.returncode == 6
    assert b"50 items in 2 runs" in done.stdout
    assert b"25 items cannot be read, and stay where they are" in done.stderr
    reader = ExportReader(file)
    reader.check()
    assert (reader.head["held"], reader.counts.unreadable_items) == (75, 25)
