"""The daemon and its commands, as a user meets them."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.config.settings import Settings
from daemon.app import serve
from daemon.journal.chunk import HEAD_BYTES
from daemon.journal.index import unpack_index
from daemon.stores.sqlite.store import SqliteCold
from forebay import connect, wire
from forebay.wire import Kind
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually, eventually_sync

FILE_QUEUE = "out.ndjson"


def delivered_ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def test_pushed_lines_are_delivered_and_the_books_say_so(tmp_path: Path) -> None:
    out = tmp_path / FILE_QUEUE
    host = Host(tmp_path, {"queues": {"crm": {"handler": {"type": "file", "path": str(out)}}}})
    with running(host):
        lines = b"".join(b"item %d\n" % n for n in range(5000))
        host.ok("push", "crm", "-", "--flow", "nightly", "--header", "trace=7", stdin=lines)
        host.until_books({"accepted": 5000, "delivered": 5000}, "crm")
        assert host.stop() == 0
    items = [json.loads(line) for line in out.read_text().splitlines()]
    assert [item["payload"] for item in items] == [f"item {n}" for n in range(5000)]
    assert len({item["id"] for item in items}) == 5000
    assert items[0]["flow"] == "nightly"
    assert items[0]["headers"] == {"trace": "7"}
    assert host.log()[-1]["event"] == "daemon.stopped"


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        host.ok("push", "crm", "-", stdin=b"one\ntwo\nthree\n")
        assert host.stop(signal.SIGKILL) == -signal.SIGKILL
        host.start()
        host.until_books({"accepted": 3, "held": 3}, "crm")
        dumped = [json.loads(line) for line in host.ok("spool", "dump").splitlines()]
        assert [item["payload"] for item in dumped] == ["one", "two", "three"]


def test_second_daemon_on_the_state_directory_is_refused(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        assert host.daemon is not None
        done = host.command("run", "--socket", str(tmp_path / "other.sock"))
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert f"process id {host.daemon.pid}" in line
        assert host.books() == {}


def test_second_daemon_on_the_socket_is_refused(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        done = host.command("run", "--state-dir", str(tmp_path / "other"))
        assert done.returncode == 1
        assert "another process listens" in done.stderr.decode()


def test_stale_socket_is_replaced_after_kill_9(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        host.stop(signal.SIGKILL)
        assert host.socket.exists()
        host.start()
        assert host.books() == {}


def test_no_daemon_is_one_clear_line(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for args in (("stats",), ("push", "crm", "-", "--timeout", "1s")):
        done = host.command(*args, stdin=b"x\n")
        assert done.returncode == 4
        (line,) = done.stderr.decode().splitlines()
        assert str(host.socket) in line


def test_unknown_queue_is_refused_where_none_is_created(tmp_path: Path) -> None:
    host = Host(tmp_path, {"auto_create_queues": False, "queues": {"crm": {}}})
    with running(host):
        host.ok("push", "crm", "-", stdin=b"x\n")
        done = host.command("push", "other", "-", stdin=b"x\n")
        assert done.returncode == 4
        assert "UNKNOWN_QUEUE" in done.stderr.decode()
        host.until_books({"accepted": 1, "held": 1})


def test_spool_commands_on_a_live_and_a_stopped_spool(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        host.ok("push", "crm", "-", stdin=b"a\nb\n")
        host.ok("push", "erp", "-", stdin=b"c\n")
        for _ in ("live", "stopped"):
            rows = map(json.loads, host.ok("spool", "ls", "--json").splitlines())
            (row,) = [row for row in rows if row["state"] != "ready"]
            assert (row["runs"], row["items"], row["held"]) == (2, 3, 3)
            assert "2 runs, 3 items: no damage" in host.ok("spool", "verify")
            (item,) = map(json.loads, host.ok("spool", "dump", "--queue", "erp").splitlines())
            assert item["payload"] == "c"
            if host.daemon is not None:
                assert host.command("spool", "repair").returncode == 1
                assert host.stop() == 0
    assert "3 items held" in host.ok("spool", "repair")


def test_damage_is_found_by_verify_and_mended_by_repair(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        for payload in (b"first", b"second", b"third"):
            host.ok("push", "crm", "-", stdin=payload + b"\n")
        host.stop(signal.SIGKILL)
    spool = host.state_dir / "spool"
    (chunk,) = [path for path in spool.glob("*.chunk") if b"second" in path.read_bytes()]
    data = chunk.read_bytes()
    chunk.write_bytes(data.replace(b"second", b"sEcond"))
    done = host.command("spool", "verify")
    assert done.returncode == 6
    assert "belong to no intact block" in done.stdout.decode()
    said = host.ok("spool", "repair")
    assert "2 items held" in said
    assert "damaged lost items: 1" in said
    assert list((spool / "quarantine").iterdir())
    assert "no damage" in host.ok("spool", "verify")
    for _ in ("the next start", "the one after it"):
        with running(host):
            assert host.books("crm") == {"accepted": 3, "lost": 1, "held": 2}
            assert host.stop() == 0


@pytest.mark.parametrize("name", ["", "spool"])
def test_directory_that_others_may_write_is_refused(name: str, tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        assert host.stop() == 0
    open_to_all = host.state_dir / name
    open_to_all.chmod(0o777)
    done = host.command("run")
    assert done.returncode == 1
    said = done.stderr.decode().strip()
    assert said.endswith(
        f"other users may write the directory {open_to_all} (mode 0777): chmod go-w {open_to_all}"
    )
    assert "Traceback" not in said
    open_to_all.chmod(0o700)
    with running(host):
        assert host.stop() == 0


def test_files_that_are_kept_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    host = Host(tmp_path)
    kept = host.state_dir / "queues.json"
    for _ in ("made", "made private"):
        with running(host):
            host.ok("push", "crm", "-", stdin=b"x\n")
            host.ok("queues", "pause", "crm")
            assert kept.stat().st_mode & 0o777 == 0o600
            assert host.stop() == 0
        kept.chmod(0o644)
    with running(host):
        assert kept.stat().st_mode & 0o777 == 0o600


def test_clock_that_was_set_back_while_the_daemon_was_stopped_is_noticed(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        host.ok("push", "crm", "-", stdin=b"first\n")
        assert host.stop() == 0
    tomorrow = time.time() + 86_400
    os.utime(host.state_dir / "cold.sqlite", (tomorrow, tomorrow))
    with running(host):
        assert host.books("crm") == {"accepted": 1, "held": 1}
        assert host.stop() == 0
    (jumped,) = [line for line in host.log() if line["event"] == "clock.jumped"]
    assert -86_400 <= jumped["seconds"] < -80_000


def test_rot_in_a_sealed_chunk_is_mended_by_repair(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        for payload in (b"first", b"second", b"third"):
            host.ok("push", "crm", "-", stdin=payload + b"\n")
        assert host.stop() == 0
    spool = host.state_dir / "spool"
    (chunk,) = spool.glob("*.chunk")
    assert list(spool.glob("*.index"))
    chunk.write_bytes(chunk.read_bytes().replace(b"second", b"sEcond"))
    assert host.command("spool", "verify").returncode == 6
    assert "damaged lost items: 1" in host.ok("spool", "repair")
    kept = [path.read_bytes() for path in (spool / "quarantine").iterdir()]
    assert any(b"sEcond" in data for data in kept)
    assert "no damage" in host.ok("spool", "verify")
    again = host.ok("spool", "repair")
    assert "2 items held" in again
    assert "damaged" not in again
    assert len(list((spool / "quarantine").iterdir())) == len(kept)
    with running(host):
        assert host.books("crm") == {"accepted": 3, "lost": 1, "held": 2}


def test_damaged_head_of_a_sealed_chunk_is_mended_by_repair(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        host.ok("push", "crm", "-", stdin=b"first\n")
        assert host.stop() == 0
    (chunk,) = (host.state_dir / "spool").glob("*.chunk")
    chunk.write_bytes(b"\xff" * 8 + chunk.read_bytes()[8:])
    assert host.command("spool", "verify").returncode == 6
    assert "1 item held" in host.ok("spool", "repair")
    assert "no damage" in host.ok("spool", "verify")
    with running(host):
        assert host.books("crm") == {"accepted": 1, "held": 1}


def test_items_that_damage_destroys_are_counted_as_lost(tmp_path: Path) -> None:
    """Also of the chunk that is being written, which has no index."""
    host = Host(tmp_path)
    with running(host):
        with connect(host.socket) as client:
            for _ in range(10):
                client.push("crm", [os.urandom(100)] * 1000)

        def drafted() -> Path:
            (draft,) = (host.state_dir / "spool").glob("*.draft")
            known = unpack_index(draft.read_bytes(), int(draft.stem, 16), None)
            assert known is not None
            assert len(known[0]) == 10
            return draft

        chunk = eventually_sync(drafted, errors=(ValueError,)).with_suffix(".chunk")
        host.stop(signal.SIGKILL)
    with chunk.open("r+b") as file:
        # The head of a block and of its run are gone as well.
        file.seek(HEAD_BYTES)
        file.write(bytes(200))
    with running(host):
        assert host.books("crm") == {"accepted": 10_000, "lost": 1000, "held": 9000}
        said = json.loads(host.ok("stats", "--json"))
        assert said["queues"]["crm"]["lost"] == 1000
        assert "lost" in host.ok("stats")
        host.stop(signal.SIGKILL)
    with running(host):
        assert host.books("crm") == {"accepted": 10_000, "lost": 1000, "held": 9000}
    assert any(line["event"] == "recovery.items_lost" for line in host.log())


def test_second_signal_ends_a_drain_that_waits(tmp_path: Path) -> None:
    out = tmp_path / "dir"
    out.mkdir()
    queues = {"crm": {"handler": {"type": "file", "path": str(out)}}}
    host = Host(tmp_path, {"queues": queues, "drain_timeout": "1h"})
    with running(host):
        host.ok("push", "crm", "-", stdin=b"x\n")
        assert host.daemon is not None
        host.daemon.send_signal(signal.SIGTERM)
        host.until_logged("daemon.draining")
        assert host.stop(signal.SIGTERM) == 0
        host.start()
        host.until_books({"accepted": 1, "held": 1}, "crm")


async def test_nobody_can_connect_before_the_daemon_can_answer(tmp_path: Path) -> None:
    opening, go_on = trio.Event(), trio.Event()

    class SlowCold(SqliteCold):
        async def open(self) -> None:
            opening.set()
            await go_on.wait()
            await super().open()

    path = tmp_path / "f.sock"
    config = {
        "state_dir": tmp_path / "state",
        "socket": {"path": path, "max_run_bytes": "1Mi"},
        "http": {"listen": None},
        "spool": {"chunk_size": "4Mi", "min_free_bytes": 0, "spare_chunks": 0},
    }
    serving = partial(serve, Settings.model_validate(config), make_cold=SlowCold)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving)
        await opening.wait()
        with pytest.raises(FileNotFoundError):
            await trio.open_unix_socket(str(path))
        go_on.set()

        async def connected() -> trio.SocketStream:
            return await trio.open_unix_socket(str(path))

        stream: trio.SocketStream = await eventually(connected, errors=(OSError,))
        await stream.send_all(wire.hello("test"))
        assert wire.read_frame_head(await stream.receive_some(12)).kind is Kind.WELCOME
        await stream.aclose()
        nursery.cancel_scope.cancel()
