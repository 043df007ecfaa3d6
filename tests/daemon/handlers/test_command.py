"""The command handler, with real programs."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.model.outcomes import Failure, Report
from actors.model.slices import ERROR_TEXT_MAX
from actors.ports.handler import DeliveryFailed, Handler
from daemon.errors import CannotStart
from daemon.handlers.command.results import LINE_BYTES_MAX, ItemResults, seconds
from tests.daemon.handlers.batches import (
    HANG_S,
    damaged_slice,
    deliver,
    failures,
    opened,
    slice_of,
    texts,
)
from tests.eventually import eventually_sync


def shell(script: str, *args: object, **settings: Any) -> Handler:
    command = ["/bin/sh", "-c", script, "sh", *map(str, args)]
    return opened({"type": "command", "command": command, "timeout": "1h", **settings})


def python(script: str, **settings: Any) -> Handler:
    command = [sys.executable, "-c", script]
    return opened({"type": "command", "command": command, "timeout": "1h", **settings})


async def failure_of(handler: Handler, *payloads: bytes) -> Failure:
    with pytest.raises(DeliveryFailed) as failed:
        await deliver(handler, slice_of(payloads))
    return failed.value.failure


async def test_program_is_fed_the_batch_and_told_about_it(tmp_path: Path) -> None:
    handler = shell(
        'cat > got; echo "$FOREBAY_QUEUE $FOREBAY_ITEMS $MINE $PWD" > told',
        environment={"MINE": "yes"},
        directory=str(tmp_path),
    )
    assert await deliver(handler, slice_of([b"one", b"two"]), slice_of([b"three"])) == Report()
    lines = (tmp_path / "got").read_text().splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["one", "two", "three"]
    assert (tmp_path / "told").read_text().split() == ["crm", "3", "yes", str(tmp_path)]


async def variables(directory: Path, **settings: Any) -> dict[str, str]:
    """The environment of a program, without what its shell sets."""
    out = directory / "variables"
    handler = opened(
        {"type": "command", "command": ["sh", "-c", f"env -0 > {out}"], "timeout": "1h", **settings}
    )
    await deliver(handler, slice_of([b"x"]))
    pairs = [line.partition("=") for line in out.read_text().split("\0") if line]
    return {name: value for name, _, value in pairs if name not in ("PWD", "SHLVL", "_", "OLDPWD")}


async def test_a_program_gets_nothing_else_of_the_daemons_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name != "PATH":
            monkeypatch.delenv(name)
    usual = {
        "HOME": "/home/forebay",
        "LANG": "C.UTF-8",
        "LC_TIME": "C",
        "TZ": "UTC",
        "TMPDIR": str(tmp_path),
        "USER": "forebay",
        "LOGNAME": "forebay",
    }
    others = {
        "FOREBAY_COLD__URL": "postgresql://u:hush@h/d",
        "CRM_KEY": "hush",
        "AWS_REGION": "eu",
        "PYTHONPATH": "/x",
        "NOTIFY_SOCKET": "/run/x",
    }
    for name, value in (usual | others).items():
        monkeypatch.setenv(name, value)
    told = {"FOREBAY_QUEUE": "crm", "FOREBAY_ITEMS": "1"}
    usual |= {"PATH": os.environ["PATH"]}
    assert await variables(tmp_path) == usual | told
    found = await variables(
        tmp_path,
        inherit=["AWS_REGION", "NOT_SET"],
        environment={"TZ": "CET", "KEY": {"env": "CRM_KEY"}},
    )
    assert found == usual | told | {"AWS_REGION": "eu", "TZ": "CET", "KEY": "hush"}


@pytest.mark.parametrize("keys", [{"environment": {"A=B": "x"}}, {"inherit": [""]}])
def test_what_cannot_be_the_name_of_a_variable_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not a valid name of a variable"):
        shell("true", **keys)


def test_a_secret_that_no_variable_can_hold_is_named(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"a\0b")
    with pytest.raises(CannotStart) as caught:
        shell("true", environment={"KEY": {"file": str(file)}})
    text = "KEY has a zero byte in it, which no variable can hold"
    assert str(caught.value) == f"queues.crm.handler.environment: {text}"


async def test_half_a_secret_at_the_beginning_of_stderr_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = "hush-" * 20
    monkeypatch.setenv("CRM_KEY", secret)
    rest = "x" * (ERROR_TEXT_MAX - 50)
    script = f'printf "%s{rest}" "$KEY" >&2; exit 1'
    failure = await failure_of(shell(script, environment={"KEY": {"env": "CRM_KEY"}}), b"x")
    assert "hush" not in failure.text


async def test_a_program_is_told_what_all_its_items_are_part_of(tmp_path: Path) -> None:
    handler = shell('echo "$FOREBAY_CORRELATION_ID,$TRACEPARENT" > told', directory=str(tmp_path))
    first, second = (
        slice_of([b"x"], headers={"X-Correlation-Id": "c-1", "traceparent": trace})
        for trace in ("00-a-b-01", "00-a-c-01")
    )
    await deliver(handler, first)
    assert (tmp_path / "told").read_text() == "c-1,00-a-b-01\n"
    await deliver(handler, first, second)
    assert (tmp_path / "told").read_text() == "c-1,\n"
    await deliver(handler, first, slice_of([b"x"]))
    assert (tmp_path / "told").read_text() == ",\n"


async def test_arguments_go_through_no_shell(tmp_path: Path) -> None:
    target = tmp_path / "$(touch oops); got"
    handler = opened({"type": "command", "command": ["tee", str(target)], "encoding": "raw"})
    assert await deliver(handler, slice_of([b"a", b"b"])) == Report()
    assert target.read_bytes() == b"a\nb"


async def test_program_that_reads_nothing_and_ends_well_has_delivered() -> None:
    # More than a pipe holds, so that the end of the program is noticed while it is fed.
    assert await deliver(shell("exec 0<&-; exit 0"), slice_of([os.urandom(900_000)])) == Report()


async def test_exit_code_asks_for_another_try_and_tells_the_end_of_stderr() -> None:
    failure = await failure_of(shell("cat > /dev/null; echo no route >&2; exit 75"), b"x")
    assert failure == Failure("sh: exit code 75: no route", status=75)


async def test_permanent_code_refuses_for_good() -> None:
    handler = shell("echo bad data >&2; exit 9", permanent_codes=[9, 65])
    failure = await failure_of(handler, b"x")
    assert (failure.is_permanent, failure.blames_destination, failure.status) == (True, False, 9)


async def test_death_by_a_signal_asks_for_another_try() -> None:
    failure = await failure_of(shell("kill -SEGV $$"), b"x")
    assert failure == Failure("sh: killed by SIGSEGV", status=128 + signal.SIGSEGV)


async def test_long_stderr_does_not_block_and_its_end_is_kept() -> None:
    script = "import sys; sys.stderr.write('x' * 1_000_000 + 'the end'); sys.exit(1)"
    failure = await failure_of(python(script), b"x")
    assert failure.text.endswith("xthe end")
    assert len(failure.text) <= ERROR_TEXT_MAX


async def test_items_that_are_named_on_stdout_have_outcomes_of_their_own() -> None:
    script = """
import json, sys
ids = [json.loads(line)["id"] for line in sys.stdin]
print("starting, with some noise {")
print(json.dumps({"id": ids[0], "status": "ok"}))
print(json.dumps({"id": ids[1], "status": "retry", "error": "busy", "retry_after": 7}))
print(json.dumps({"id": ids[2], "status": "failed", "error": "no such customer"}))
print(json.dumps({"id": "somebody-else", "status": "failed"}))
print(json.dumps({"id": ids[3], "status": "?"}), end="")
sys.exit(int(sys.argv[1]))
"""
    expected = {
        (0, 1): Failure("busy", retry_after_s=7, blames_destination=False),
        (1, 0): Failure("no such customer", is_permanent=True, blames_destination=False),
    }
    batch = [slice_of([b"a", b"b"]), slice_of([b"c", b"d"])]
    for code in "01":
        command = [sys.executable, "-c", script, code]
        report = await deliver(opened({"type": "command", "command": command}), *batch)
        said = failures(report)
        if code == "1":
            assert said.pop((1, 1)).status == 1
        assert said == expected


def test_results_are_read_however_the_output_is_cut() -> None:
    lines = b'{"id":"a","status":"ok"}\n{"id":"b","status":"failed","error":"no"}'
    for size in range(1, len(lines)):
        results = ItemResults(["a", "b", "c"])
        for at in range(0, len(lines), size):
            results.feed(lines[at : at + size])
        results.end()
        assert results.verdicts["a"] is None
        assert results.verdicts["b"] is not None
        assert "c" not in results.verdicts


def test_a_program_says_whose_fault_it_was() -> None:
    results = ItemResults(["a", "b", "c"])
    results.feed(b'{"id":"a","status":"failed","failure_reason":"business"}\n')
    results.feed(b'{"id":"b","status":"retry","failure_reason":"Business"}\n')
    results.feed(b'{"id":"c","status":"failed","failure_reason":["business"]}\n')
    said = [results.verdicts[item_id] for item_id in "abc"]
    assert [(one.failure_reason, one.is_permanent) for one in said if isinstance(one, Failure)] == [
        ("business", True),
        ("business", False),
        ("application", True),
    ]


def test_pause_that_is_none_is_not_asked_for() -> None:
    for said in (None, "5", True, -1, float("nan"), [5]):
        assert seconds(said) is None
    assert (seconds(0), seconds(2.5), seconds(10**9)) == (0, 2.5, 86400)


def test_line_without_end_is_not_kept() -> None:
    results = ItemResults(["a"])
    for _ in range(100):
        results.feed(b"[" * 10_000)
        assert len(results._line) <= LINE_BYTES_MAX
    results.feed(b'\n{"id":"a","status":"retry"}\n')
    assert "a" in results.verdicts


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


STUBBORN = """
trap '' TERM
(trap '' TERM; while :; do sleep 1000; done) &
echo $! > "$1"
while :; do sleep 1000; done
"""


async def test_program_is_told_to_stop_and_then_killed_with_its_children(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    handler = shell(STUBBORN, fifo, timeout="30s", kill_after="10s")
    assert handler.timeout_s >= 40
    failed: list[Failure] = []

    async def send() -> None:
        failed.append(await failure_of(handler, b"x"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        child = int(await trio.to_thread.run_sync(fifo.read_text))
        mock_clock.jump(30)
        await trio.testing.wait_all_tasks_blocked()
        assert is_alive(child)
        assert not failed
        # However long it takes until it has been told to stop, and then until it has been killed.
        while not failed:
            mock_clock.jump(1)
            await trio.to_thread.run_sync(time.sleep, 0.001)
    assert failed == [Failure("sh: not done after 30s")]
    await trio.to_thread.run_sync(wait_until_gone, child)


def wait_until_gone(pid: int) -> None:
    """Nobody's child any more: whoever adopts orphans reaps it, in its own time."""

    def is_gone() -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"

    eventually_sync(is_gone)


async def test_program_that_stops_when_told_keeps_what_it_said(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"""
import json, signal, sys
ids = [json.loads(line)["id"] for line in sys.stdin]
def stop(*_):
    print(json.dumps({{"id": ids[0], "status": "ok"}}), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open({str(fifo)!r}, "w").write("ready")
signal.pause()
"""
    handler = python(script, timeout="30s", kill_after="5m")
    reports: list[Report] = []

    async def send() -> None:
        reports.append(await deliver(handler, slice_of([b"a", b"b"])))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.to_thread.run_sync(fifo.read_text)
        mock_clock.jump(30)
    assert list(texts(reports[0])) == [(0, 1)]
    assert "not done after 30s" in texts(reports[0])[0, 1]


async def test_cancelling_kills_and_reaps(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    handler = shell('trap "" TERM; echo $$ > "$1"; while :; do sleep 1000; done', fifo)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, handler, slice_of([b"x"]))
            pid = int(await trio.to_thread.run_sync(fifo.read_text))
            nursery.cancel_scope.cancel()
    assert not is_alive(pid)


async def test_process_that_a_program_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # It holds the program's pipes, and ends when the test opens the other side.
    handler = shell('(read line < "$1") & exit 0', fifo, timeout="1h")
    with trio.fail_after(HANG_S):
        assert await deliver(handler, slice_of([b"x"])) == Report()
    fifo.write_text("end\n")


async def test_program_that_has_gone_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    handler = opened({"type": "command", "command": [str(program)]})
    assert await deliver(handler, slice_of([b"x"])) == Report()
    program.unlink()
    failure = await failure_of(handler, b"x")
    assert failure.text == f"{program}: cannot be started: No such file or directory"


async def test_what_cannot_be_unpacked_keeps_its_own_reason() -> None:
    report = await deliver(shell("exit 1"), damaged_slice(), slice_of([b"x"]))
    assert failures(report)[0, 0].is_permanent
    assert failures(report)[1, 0].status == 1
    assert list(failures(await deliver(shell("exit 1"), damaged_slice()))) == [(0, 0)]


def test_program_that_cannot_be_started_is_known_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"command": ["no-such-program"]}, "command: no program no-such-program in PATH"),
        ({"command": ["/no/such"]}, "command: /no/such does not exist"),
        ({"command": ["./data"], "directory": str(tmp_path)}, "data cannot be executed"),
        ({"command": ["sh"], "directory": "/no/such"}, "directory: /no/such is not a directory"),
        ({"command": ["sh"], "environment": {"PATH": str(tmp_path)}}, "no program sh in PATH"),
    ]
    for settings, problem in cases:
        with pytest.raises(CannotStart, match=rf"^queues\.crm\.handler\..*{problem}"):
            opened({"type": "command", **settings})


def test_commands_that_share_an_interpreter_are_different_destinations() -> None:
    one, same, other = (
        opened({"type": "command", "command": ["/bin/sh", script]})
        for script in ("a b.sh", "a b.sh", "a.sh")
    )
    assert one.destination == same.destination == "command:/bin/sh 'a b.sh'"
    assert one.destination != other.destination


def test_destination_names_no_secret_and_is_still_its_own() -> None:
    one, other = (
        opened({"type": "command", "command": ["/bin/sh", "a.sh", f"--token={secret}"]})
        for secret in ("first", "second")
    )
    assert one.destination.startswith("command:/bin/sh a.sh '--token=***' #")
    assert one.destination != other.destination
