"""The python handler with a process for each sender: what dies, and what goes on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.model.outcomes import Failure, Report
from actors.ports.handler import NoPace, Sender
from daemon.handlers.items import UnpackedRuns, unpack_batch
from daemon.handlers.python.frames import encode_items
from tests.daemon.handlers.batches import HANG_S, deliver, failures, opened, slice_of, texts

HERE = "tests.daemon.handlers.functions"


def process(function: str, **settings: Any) -> dict[str, Any]:
    """With time enough for a process to start on a busy machine."""
    how = {"mode": "process", "timeout": "1h"}
    return {"type": "python", "function": f"{HERE}:{function}", **how, **settings}


async def test_outcomes_and_payloads_cross_as_they_are(tmp_path: Path) -> None:
    touched = tmp_path / "tœuched"
    payloads = [f"touch:{touched}".encode(), b"retry:5", b"reject", b"error", b"business"]
    part = slice_of([*payloads, b"\xff\x00"])
    report = await deliver(opened(process("by_payload")), part)
    assert touched.exists()
    said = failures(report)
    assert said.pop((0, 5)).text.startswith("UnicodeDecodeError")
    business = said.pop((0, 4))
    assert (business.failure_reason, business.is_permanent) == ("business", True)
    assert said == {
        (0, 1): Failure("much later", retry_after_s=5, blames_destination=False),
        (0, 2): Failure("no such customer", is_permanent=True, blames_destination=False),
        (0, 3): Failure("ValueError: bad thing"),
    }


async def test_what_a_function_prints_is_no_answer() -> None:
    assert await deliver(opened(process("by_payload")), slice_of([b"print", b"x"])) == Report()


async def test_batch_function_in_a_process() -> None:
    handler = opened(process("whole", batch=True))
    report = await deliver(handler, slice_of([b"mixed", b"1", b"2", b"3", b"4", b"5"]))
    assert sorted(failures(report)) == [(0, 1), (0, 2), (0, 3), (0, 5)]
    report = await deliver(handler, slice_of([b"die", b"1"]))
    assert set(texts(report).values()) == {"the process died over it: exit code 3"}
    assert len(failures(report)) == 2


async def test_process_is_kept_from_batch_to_batch(tmp_path: Path) -> None:
    handler = opened(process("pid"))
    sender = handler.open_sender(NoPace())
    left = tmp_path / "pids"
    for _ in range(2):
        prepared = handler.prepare([slice_of([os.fsencode(left)] * 2)])
        assert await sender.send(prepared) == Report()
    await sender.aclose()
    lines = left.read_text().splitlines()
    assert len(lines) == 4
    (line,) = set(lines)
    number, path = line.split()
    assert int(number) != os.getpid()
    assert path == str(os.environ.get("PYTHONPATH"))
    assert not _is_alive(int(number))


async def test_process_has_the_environment_without_what_is_meant_for_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FOREBAY_COLD__URL", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "CRM_REGION"):
        monkeypatch.setenv(name, "x")
    left = tmp_path / "variables"
    assert await deliver(opened(process("variables")), slice_of([os.fsencode(left)])) == Report()
    names = left.read_text().split()
    assert "CRM_REGION" in names
    assert not {"NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"} & set(names)
    assert not any(name.startswith("FOREBAY_") for name in names)


@pytest.mark.parametrize("how, text", [(b"die", "exit code 3"), (b"kill", "killed by SIGKILL")])
async def test_process_that_dies_costs_only_the_item_it_died_over(how: bytes, text: str) -> None:
    report = await deliver(opened(process("by_payload")), slice_of([b"a", how, b"b", how, b"c"]))
    expected = f"the process died over it: {text}"
    assert texts(report) == {(0, 1): expected, (0, 3): expected}


async def test_process_that_died_while_idle_is_replaced(tmp_path: Path) -> None:
    handler = opened(process("pid"))
    sender = handler.open_sender(NoPace())
    left = tmp_path / "pids"
    batch = [slice_of([os.fsencode(left)])]
    await sender.send(handler.prepare(batch))
    first = int(left.read_text().split()[0])
    os.kill(first, 9)
    # A zombie until the sender looks at it.
    await trio.to_thread.run_sync(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert await sender.send(handler.prepare(batch)) == Report()
    await sender.aclose()
    pids = [int(line.split()[0]) for line in left.read_text().splitlines()]
    assert len(set(pids)) == 2


async def _hang(sender: Sender, handler: Any, fifo: Path, reports: list[Report]) -> None:
    part = slice_of([b"ok", f"hang:{fifo}".encode(), b"after"])
    reports.append(await sender.send(handler.prepare([part])))


async def test_process_is_killed_at_the_deadline_and_replaced(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    handler = opened(process("by_payload", timeout="30s"))
    sender = handler.open_sender(NoPace())
    reports: list[Report] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hang, sender, handler, fifo, reports)
        pid = int(await trio.to_thread.run_sync(fifo.read_text))
        mock_clock.jump(30)
    text = "the function was not done after 30s"
    assert texts(reports[0]) == {(0, 1): text, (0, 2): text}
    assert not _is_alive(pid)
    assert await sender.send(handler.prepare([slice_of([b"ok"])])) == Report()
    await sender.aclose()


async def test_cancelling_kills_the_process(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    handler = opened(process("by_payload"))
    sender = handler.open_sender(NoPace())
    reports: list[Report] = []
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hang, sender, handler, fifo, reports)
            pid = int(await trio.to_thread.run_sync(fifo.read_text))
            nursery.cancel_scope.cancel()
    assert not reports
    assert not _is_alive(pid)
    await sender.aclose()


def test_busy_process_ends_when_the_daemon_is_gone(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = subprocess.Popen(
        [sys.executable, "-m", "daemon.handlers.python.child", f"{HERE}:by_payload", "each"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with child:
        assert child.stdin is not None
        part = slice_of([f"hang:{fifo}".encode()])
        child.stdin.write(encode_items(unpack_batch([part], UnpackedRuns()).items()))
        child.stdin.flush()
        assert int(fifo.read_text()) == child.pid
        child.stdin.close()
        assert child.wait(HANG_S) == 1


async def test_process_that_cannot_import_the_function_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "soon_gone.py"
    module.write_text("def f(item): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    handler = opened(
        {"type": "python", "function": "soon_gone:f", "mode": "process", "timeout": "1h"}
    )
    assert await deliver(handler, slice_of([b"x"])) == Report()
    module.write_text("raise RuntimeError('licence ran out')\n")
    report = await deliver(handler, slice_of([b"x", b"y"]))
    assert len(failures(report)) == 2
    assert "importing soon_gone: RuntimeError: licence ran out" in texts(report)[0, 0]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
