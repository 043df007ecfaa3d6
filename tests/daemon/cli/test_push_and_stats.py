"""The commands as a user runs them: real processes against a real socket."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.spooler.messages import Append
from forebay.errors import Refused
from forebay.run import Run, read_run
from forebay.wire import Outcome
from tests import forked
from tests.daemon.cli.commands import HANG_S
from tests.wire.harness import Served, serve

Done = subprocess.CompletedProcess[bytes]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(tmp_path) as served:
        yield served


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "daemon.cli.main", *arguments]


async def forebay(served: Served, *arguments: str, stdin: bytes = b"") -> Done:
    environment = {**os.environ, "FOREBAY_SOCKET": str(served.path)}
    return await trio.to_thread.run_sync(forked.run, arguments, environment, stdin, HANG_S)


def run_of(served: Served) -> Run:
    [append] = served.spooler.appends
    return read_run(append.data)


async def test_lines_of_a_pipe_become_items(served: Served) -> None:
    done = await forebay(served, "push", "crm", stdin=b"one\ntwo\n\nthree")
    assert done.returncode == 0
    assert done.stdout.startswith(b"crm: 3 items in 1 run, acknowledged in ")
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
    assert run_of(served).payloads() == [b"one", b"two", b"three"]


async def test_file_is_pushed_with_all_that_is_said_about_it(
    served: Served, tmp_path: Path
) -> None:
    file = trio.Path(tmp_path / "items.ndjson")
    await file.write_bytes(b'{"id":7,"n":1}\n{"id":"x","n":2}\n')
    done = await forebay(
        served,
        *("push", "crm", str(file), "--priority", "2", "--delay", "1h", "--key-field", "id"),
        *("--flow", "nightly", "--action", "upsert", "--header", "a=1", "--header", "b=x=y"),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    run = run_of(served)
    assert run.payloads() == [b'{"id":7,"n":1}', b'{"id":"x","n":2}']
    assert run.keys() == [b"7", b"x"]
    head = run.head
    assert (head.queue, head.priority, head.flow, head.action) == ("crm", 2, "nightly", "upsert")
    assert head.headers() == {"a": "1", "b": "x=y"}
    assert head.due_ms - head.enqueued_ms == 3_600_000


async def test_split_by_size_with_a_fixed_key_and_without_compression(served: Served) -> None:
    done = await forebay(
        served, "push", "crm", "-", "--split", "4", "--key", "k", "--no-compress", stdin=b"a" * 10
    )
    assert done.returncode == 0
    run = run_of(served)
    assert run.payloads() == [b"aaaa", b"aaaa", b"aa"]
    assert run.keys() == [b"k"] * 3


async def test_items_of_a_slow_pipe_are_pushed_without_waiting_for_its_end(
    served: Served,
) -> None:
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                command("push", "crm", "--socket", str(served.path)),
                stdin=subprocess.PIPE,
                capture_stdout=True,
            )
        )
        assert process.stdin is not None
        await process.stdin.send_all(b"first\nsec")
        await served.spooler.wait_for(1)
        await process.stdin.send_all(b"ond\n")
        await process.stdin.aclose()
    payloads = [read_run(append.data).payloads() for append in served.spooler.appends]
    assert payloads == [[b"first"], [b"second"]]


async def test_refusal_is_one_line_and_says_what_is_stored(served: Served) -> None:
    def answer(append: Append) -> Outcome | Refused:
        if len(served.spooler.appends) == 1:
            return Outcome.STORED
        return Refused("TOO_LARGE", "at most 4Mi are allowed")

    served.spooler.answer = answer
    done = await forebay(served, "push", "crm", stdin=b"x\n" * 1500)
    assert done.returncode == 5
    assert done.stderr.decode() == (
        "forebay: TOO_LARGE: at most 4Mi are allowed; 1,000 items stored before that\n"
    )


async def test_no_daemon_is_one_line_and_names_the_socket(served: Served, tmp_path: Path) -> None:
    done = await forebay(served, "push", "crm", "--socket", str(tmp_path / "none.sock"))
    assert done.returncode == 4
    assert done.stderr.decode() == (
        f"forebay: no daemon: {tmp_path}/none.sock: there is no such socket\n"
    )


@pytest.mark.parametrize(
    "arguments,text",
    [
        (("--priority", "256"), "--priority is 0 to 255"),
        (("--split", "words"), "--split is lines, null, whole or a size"),
        (("--split", "0"), "--split is lines, null, whole or a size"),
        (("--delay", "soon"), "--delay: 'soon' is not a duration"),
        (("--header", "novalue"), "--header is NAME=VALUE"),
        (("--key", "a", "--key-field", "b"), "not both"),
    ],
)
async def test_wrong_option_is_one_line(
    served: Served, arguments: tuple[str, ...], text: str
) -> None:
    done = await forebay(served, "push", "crm", *arguments)
    assert done.returncode == 2
    assert text in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments,stdin,text",
    [
        (("no/queue",), b"x", "is not a valid queue name"),
        (("crm", "/no/such/file"), b"", "/no/such/file: No such file or directory"),
        (("crm", "--key-field", "id"), b'{"id":1}\nnot json\n', "'id' in 'not json'"),
        (("crm", "--key-field", "id"), b'{"id":null}\n', "no text or whole number 'id'"),
    ],
)
async def test_what_cannot_be_pushed_is_one_line(
    served: Served, arguments: tuple[str, ...], stdin: bytes, text: str
) -> None:
    done = await forebay(served, "push", *arguments, stdin=stdin)
    assert done.returncode == 1
    assert text in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert served.spooler.appends == []


async def test_stats_are_a_table_or_json(served: Served) -> None:
    books = {"accepted": 1500, "delivered": 1000, "dropped": 0, "held": 500, "running": 500}
    served.spooler.report = {"daemon": books, "queues": {"crm": books}, "spool": {"runs": 1}}
    done = await forebay(served, "stats")
    assert done.returncode == 0
    header, crm, everything = (line.split() for line in done.stdout.decode().splitlines())
    assert header == ["queue", "accepted", "delivered", "held", "running"]
    assert crm == ["crm", "1,500", "1,000", "500", "500"]
    assert everything == ["all", "queues", "1,500", "1,000", "500", "500"]
    done = await forebay(served, "stats", "--json")
    assert json.loads(done.stdout)["queues"] == {"crm": books}


async def test_stats_without_a_daemon_are_one_line(served: Served, tmp_path: Path) -> None:
    done = await forebay(served, "stats", "--socket", str(tmp_path / "none.sock"))
    assert (done.returncode, done.stderr.count(b"\n")) == (4, 1)


@pytest.mark.parametrize("arguments", [("--help",), ("push", "crm"), ("stats",)])
async def test_command_starts_without_the_daemons_libraries(
    served: Served, arguments: tuple[str, ...]
) -> None:
    """Imports on demand: what makes a start slow is not even loaded. (typer needs pydantic.)"""
    code = (
        "import sys; from daemon.cli.main import app; app(sys.argv[1:], standalone_mode=False)\n"
        "heavy = {'trio', 'actors.config.settings', 'yaml', 'structlog'} & sys.modules.keys()\n"
        "sys.exit(' '.join(heavy))"
    )
    done = await trio.run_process(
        [sys.executable, "-c", code, *arguments],
        stdin=b"x",
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={**os.environ, "FOREBAY_SOCKET": str(served.path)},
    )
    assert done.stderr.strip() == b""
