"""The daemon and its commands, as a user meets them."""

import json
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.settings import Settings
from daemon.app import serve
from daemon.cold.sqlite import SqliteCold
from forebay import connect, wire
from forebay.wire import Kind
from tests.eventually import eventually
from tests.ops.commands import LOOK_S, Host, running

FILE_QUEUE = "out.ndjson"


def delivered_ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def wait_until_delivered(host: Host, count: int) -> None:
    with connect(host.socket) as client:
        while client.stats()["daemon"]["delivered"] < count:
            time.sleep(LOOK_S)


def test_pushed_lines_are_delivered_and_the_books_say_so(tmp_path: Path) -> None:
    out = tmp_path / FILE_QUEUE
    host = Host(tmp_path, {"queues": {"crm": {"handler": {"type": "file", "path": str(out)}}}})
    with running(host):
        lines = b"".join(b"item %d\n" % n for n in range(5000))
        host.ok("push", "crm", "-", "--flow", "nightly", "--header", "trace=7", stdin=lines)
        wait_until_delivered(host, 5000)
        assert host.books("crm") == {"accepted": 5000, "delivered": 5000}
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
        assert host.books("crm") == {"accepted": 3, "held": 3}
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
        assert host.books() == {"accepted": 1, "held": 1}


def test_spool_commands_on_a_live_and_a_stopped_spool(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        host.ok("push", "crm", "-", stdin=b"a\nb\n")
        host.ok("push", "erp", "-", stdin=b"c\n")
        for _ in ("live", "stopped"):
            rows = map(json.loads, host.ok("spool", "ls", "--json").splitlines())
            (row,) = [row for row in rows if row["state"] != "ready"]
            assert (row["runs"], row["items"], row["held"]) == (2, 3, 3)
            assert "2 runs, 3 items: all whole" in host.ok("spool", "verify")
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
    assert "belong to no whole block" in done.stdout.decode()
    assert "2 items held" in host.ok("spool", "repair")
    assert list((spool / "quarantine").iterdir())
    assert "all whole" in host.ok("spool", "verify")
    with running(host):
        assert host.books("crm") == {"accepted": 2, "held": 2}


def test_second_signal_ends_a_drain_that_waits(tmp_path: Path) -> None:
    out = tmp_path / "dir"
    out.mkdir()
    queues = {"crm": {"handler": {"type": "file", "path": str(out)}}}
    host = Host(tmp_path, {"queues": queues, "drain_timeout": "1h"})
    with running(host):
        host.ok("push", "crm", "-", stdin=b"x\n")
        assert host.daemon is not None
        host.daemon.send_signal(signal.SIGTERM)
        while not any(entry["event"] == "daemon.draining" for entry in host.log()):
            time.sleep(LOOK_S)
        assert host.stop(signal.SIGTERM) == 0
        host.start()
        assert host.books("crm")["held"] == 1


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
