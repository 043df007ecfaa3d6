"""`forebay pull`, `dead`, `pause`, `resume` and `queues`: real processes, a real ingest."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.model.refusals import bad_request, not_found
from forebay.run import encode_run
from tests import forked
from tests.daemon.cli.commands import HANG_S
from tests.wire.harness import Served, serve
from tests.wire.lending import Lending

Done = subprocess.CompletedProcess[bytes]
ID = "0198c0de-0a00-7000-8000-000000000001-{}"


def letter(index: int, **members: Any) -> dict[str, Any]:
    return {
        "id": ID.format(index),
        "queue": "crm",
        "flow": "nightly",
        "action": "",
        "key": None,
        "priority": 5,
        "attempt": 9,
        "enqueued_ms": 1_755_000_000_000,
        "died_ms": 1_755_000_360_000,
        "headers": {"trace": "7"},
        "errors": [
            {"attempt": 1, "at_ms": 1_755_000_000_100, "text": "first\nerror"},
            {"attempt": 9, "at_ms": 1_755_000_360_000, "text": "[bold]timeout"},
        ],
        **members,
    }


class Board:
    """What a daemon would keep, as far as the commands ask for it. Two letters a step."""

    def __init__(self) -> None:
        self.letters = [letter(index, payload=f'{{"n":{index}}}') for index in range(5)]
        self.queue = {
            "queue": "crm",
            "origin": "control",
            "is_paused": False,
            "paused_flows": [],
            "held": 1234,
            "settings": {"handler": {"type": "pull"}, "description": "customers [all]"},
        }
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def said(self, op: str) -> list[dict[str, Any]]:
        return [fields for asked, fields in self.asked if asked == op]

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((op, dict(fields)))
        match op:
            case "dead.find" | "dead.count" | "dead.retry" | "dead.remove":
                return self._dead(op, fields)
            case "dead.edit":
                return {}
            case "queues.show" | "queues.pause" | "queues.resume":
                assert fields.keys() <= {"queue", "flow"}
                if fields["queue"] != "crm":
                    raise not_found(f"queue {fields['queue']}")
                if op == "queues.show":
                    return self.queue
                if "flow" in fields:
                    flows = [fields["flow"]] if op == "queues.pause" else []
                    return self.queue | {"paused_flows": flows}
                return self.queue | {"is_paused": op == "queues.pause"}
            case "queues.ls":
                return {"queues": [self.queue], "creates_queues": True, "cursor": None}
            case "queues.add" | "queues.set" | "queues.rm":
                return self.queue
            case _:
                raise bad_request(f"there is no operation {op}")

    def _dead(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        ids = fields["which"].get("ids")
        found = [one for one in self.letters if ids is None or one["id"] in ids]
        if op == "dead.count":
            return {"count": min(len(found), fields["stop_at"])}
        first = int(fields["cursor"] or 0)
        page = found[first : first + min(fields["limit"], 2)]
        last = first + len(page)
        cursor = str(last) if last < len(found) else None
        if op != "dead.find":
            return {"done": len(page), "cursor": cursor}
        if not fields["payloads"]:
            page = [{name: one[name] for name in one if name != "payload"} for one in page]
        return {"letters": page, "cursor": cursor}


@pytest.fixture
def lending() -> Lending:
    return Lending()


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
async def served(tmp_path: Path, lending: Lending, board: Board) -> AsyncIterator[Served]:
    async with serve(tmp_path, pull=lending.pull, control=board) as served:
        yield served


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "daemon.cli.main", *arguments]


async def forebay(served: Served, *arguments: str, stdin: bytes = b"", **env: str) -> Done:
    environment = {**os.environ, "FOREBAY_SOCKET": str(served.path), **env}
    return await trio.to_thread.run_sync(forked.run, arguments, environment, stdin, HANG_S)


async def said(served: Served, *arguments: str, stdin: bytes = b"", **env: str) -> str:
    done = await forebay(served, *arguments, stdin=stdin, **env)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


async def test_pulled_items_are_printed_and_gone(served: Served, lending: Lending) -> None:
    run = encode_run([b"a", b"\xff", b"c"], queue="crm", keys=[b"k", b"", b""], flow="f")
    await lending.enter(run, attempt=1)
    lines = (await said(served, "pull", "crm", "-n", "2")).splitlines()
    first, second = map(json.loads, lines)
    assert first == {
        "id": first["id"],
        "queue": "crm",
        "key": "k",
        "attempt": 1,
        "priority": 5,
        "flow": "f",
        "action": "",
        "headers": {},
        "payload": "a",
    }
    assert (second["payload_b64"], second["key"]) == ("/w==", None)
    assert await lending.counts() == (1, 0)
    assert await said(served, "pull", "crm", "--format", "raw", "--wait", "0") == "c\n"
    assert await lending.counts() == (0, 0)


async def test_items_that_are_not_acknowledged_are_there_again(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a", b"b")
    await lending.enter_items(b"c")
    out = await said(served, "pull", "crm", "--no-ack", "--format", "raw")
    assert out == "a\nb\nc\n"
    await trio.testing.wait_all_tasks_blocked()
    assert await lending.counts() == (3, 0)


async def test_nothing_due_is_no_output_and_no_failure(served: Served) -> None:
    assert await said(served, "pull", "crm", "--wait", "0s") == ""


async def test_items_that_standard_output_does_not_take_are_given_back(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a", b"b")
    reading, writing = os.pipe()
    os.close(reading)
    done = await trio.run_process(
        command("pull", "crm", "--socket", str(served.path)),
        stdout=writing,
        capture_stderr=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
    await trio.testing.wait_all_tasks_blocked()
    assert await lending.counts() == (2, 0)


async def test_follow_prints_items_as_they_come(served: Served, lending: Lending) -> None:
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                command("pull", "crm", "--follow", "--format", "raw", "--socket", str(served.path)),
                stdout=subprocess.PIPE,
                capture_stderr=True,
                check=False,
            )
        )
        assert process.stdout is not None
        for payload in (b"first", b"second"):
            await lending.enter_items(payload)
            assert await process.stdout.receive_some() == payload + b"\n"
        process.terminate()


async def test_dead_letters_are_listed_as_a_table_or_json(served: Served, board: Board) -> None:
    lines = (await said(served, "dead", "ls", "--queue", "crm")).splitlines()
    assert lines[0].split() == ["id", "queue", "flow", "action", "tries", "died", "last", "error"]
    assert len(lines) == 6
    assert lines[1].startswith(ID.format(0))
    assert lines[1].endswith("[bold]timeout")
    lines = (await said(served, "dead", "ls", "--json", "-n", "3")).splitlines()
    assert [json.loads(line)["id"] for line in lines] == [ID.format(index) for index in range(3)]
    assert board.said("dead.find")[0]["which"] == {"queue": "crm"}


async def test_list_that_is_cut_says_how_many_more_there_are(served: Served) -> None:
    done = await forebay(served, "dead", "ls", "-n", "2")
    assert done.returncode == 0
    assert done.stderr.decode() == "… and 3 more: see --limit\n"


async def test_filters_are_handed_to_the_daemon(served: Served, board: Board) -> None:
    await said(
        served,
        *("dead", "ls", "--queue", "q", "--flow", "f", "--action", "a", "--error", "boom"),
        *("--older-than", "1h", "--newer-than", "2h", "--id", ID.format(1), "--id", ID.format(2)),
    )
    which = board.said("dead.find")[0]["which"]
    assert which.pop("died_before_ms") - which.pop("died_after_ms") == pytest.approx(3_600_000)
    assert which == {
        "queue": "q",
        "flow": "f",
        "action": "a",
        "error": "boom",
        "ids": [ID.format(1), ID.format(2)],
    }


async def test_dead_letter_is_shown_with_its_history_and_payload(served: Served) -> None:
    out = await said(served, "dead", "show", ID.format(3))
    assert ID.format(3) in out
    assert "trace: 7" in out
    assert "1  2025-08-12 12:00:00Z  first\nerror" in out
    assert "[bold]timeout" in out
    assert out.endswith('payload\n{"n":3}\n')
    assert await said(served, "dead", "show", ID.format(3), "--raw") == '{"n":3}'
    shown = json.loads(await said(served, "dead", "show", ID.format(3), "--json"))
    assert (shown["id"], shown["payload"]) == (ID.format(3), '{"n":3}')


async def test_dead_letter_that_does_not_exist_is_one_line(served: Served) -> None:
    done = await forebay(served, "dead", "show", ID.format(99))
    assert done.returncode == 4
    assert done.stderr.decode() == (f"forebay: NOT_FOUND: no dead letter {ID.format(99)}\n")


@pytest.mark.parametrize(
    "name,op,text", [("retry", "dead.retry", "retried"), ("rm", "dead.remove", "deleted")]
)
async def test_all_that_match_are_changed_in_steps(
    served: Served, board: Board, name: str, op: str, text: str
) -> None:
    out = await said(served, "dead", name, "--queue", "crm", "--yes")
    assert out == f"5 dead letters {text}\n"
    assert [fields["cursor"] for fields in board.said(op)] == [None, "2", "4"]
    out = await said(served, "dead", name, "--all", "--yes", "--json")
    assert json.loads(out) == {"done": 5}


async def test_nothing_is_changed_without_a_yes_or_a_choice(served: Served, board: Board) -> None:
    done = await forebay(served, "dead", "rm", "--queue", "crm")
    assert done.returncode == 2
    assert b"Delete 5 dead letters? Not a terminal: pass --yes to confirm" in done.stderr
    for wrong in ((), ("--all", "--queue", "crm")):
        done = await forebay(served, "dead", "rm", "--yes", *wrong)
        assert (done.returncode, b"say which" in done.stderr) == (2, True)
    assert board.said("dead.remove") == []


async def test_item_that_is_named_is_changed_without_a_question(
    served: Served, board: Board
) -> None:
    out = await said(served, "dead", "retry", "--id", ID.format(2))
    assert out == "1 dead letter retried\n"
    assert await said(served, "dead", "retry", "--id", "none") == "no dead letters match\n"


async def test_payload_is_edited_from_a_pipe_and_retried(served: Served, board: Board) -> None:
    item = ID.format(1)
    out = await said(
        served, "dead", "edit", item, "--payload-file", "-", "--retry", stdin=b'{"n":42}'
    )
    assert out == f"{item}: new payload of 8 bytes\n{item} retried\n"
    assert board.said("dead.edit") == [{"id": item, "payload": '{"n":42}'}]
    assert board.said("dead.retry")[0]["which"] == {"ids": [item]}


async def test_payload_is_edited_in_the_users_editor(
    served: Served, board: Board, tmp_path: Path
) -> None:
    editor = trio.Path(tmp_path / "editor.py")
    await editor.write_text(
        "import pathlib, sys\n"
        "file = pathlib.Path(sys.argv[-1])\n"
        "file.write_text(file.read_text().replace('1', sys.argv[1]) + '\\n')\n"
    )
    item = ID.format(1)
    out = await said(served, "dead", "edit", item, EDITOR=f"{sys.executable} {editor} 77")
    assert out == f"{item}: new payload of 8 bytes\n"
    assert board.said("dead.edit") == [{"id": item, "payload": '{"n":77}'}]
    out = await said(served, "dead", "edit", item, EDITOR=f"{sys.executable} {editor} 1")
    assert out == f"{item}: nothing changed\n"


@pytest.mark.parametrize("editor", ["false", "/no/such/editor"])
async def test_editor_that_fails_changes_nothing(served: Served, board: Board, editor: str) -> None:
    done = await forebay(served, "dead", "edit", ID.format(1), EDITOR=editor)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"the editor" in done.stderr
    assert board.said("dead.edit") == []


async def test_queue_is_paused_and_resumed(served: Served, board: Board) -> None:
    assert await said(served, "queues", "pause", "crm") == "crm is paused\n"
    out = await said(served, "queues", "pause", "crm", "--flow", "nightly")
    assert out == "crm is running, paused flows: nightly\n"
    assert await said(served, "queues", "resume", "crm") == "crm is running\n"
    assert json.loads(await said(served, "queues", "pause", "crm", "--json"))["is_paused"] is True
    assert board.said("queues.pause")[1] == {"queue": "crm", "flow": "nightly"}
    done = await forebay(served, "queues", "pause", "cmr")
    assert (done.returncode, done.stderr) == (4, b"forebay: NOT_FOUND: there is no queue cmr\n")


async def test_queues_are_listed_and_shown(served: Served) -> None:
    header, crm = (await said(served, "queues", "ls")).splitlines()
    assert header.split() == ["queue", "defined", "by", "handler", "held", "state", "description"]
    assert crm.split() == ["crm", "control", "pull", "1,234", "running", "customers", "[all]"]
    assert "type: pull" in await said(served, "queues", "show", "crm")
    assert json.loads(await said(served, "queues", "show", "crm", "--json"))["held"] == 1234
    done = await forebay(served, "queues", "show", "cmr")
    assert (done.returncode, done.stderr) == (4, b"forebay: NOT_FOUND: there is no queue cmr\n")


async def test_queues_are_created_changed_and_deleted(served: Served, board: Board) -> None:
    values = ("handler.type=http", "handler.url=http://x/", "max_retries=3")
    sets = [part for value in values for part in ("--set", value)]
    assert await said(served, "queues", "add", "mail", *sets) == "mail added\n"
    assert board.said("queues.add") == [
        {
            "queue": "mail",
            "settings": {"handler": {"type": "http", "url": "http://x/"}, "max_retries": 3},
        }
    ]
    out = await said(served, "queues", "set", "mail", "--set", "is_active=false")
    assert out == "mail changed\n"
    assert board.said("queues.set") == [{"queue": "mail", "settings": {"is_active": False}}]
    done = await forebay(served, "queues", "rm", "mail")
    assert (done.returncode, board.said("queues.rm")) == (2, [])
    assert await said(served, "queues", "rm", "mail", "--yes") == "mail removed\n"


@pytest.mark.parametrize(
    "arguments,text",
    [
        (("pull", "crm", "--wait", "soon"), "--wait: 'soon' is not a duration"),
        (("dead", "ls", "--older-than", "long"), "--older-than: 'long' is not a duration"),
        (("queues", "add", "q", "--set", "max_retries"), "is not KEY=VALUE"),
        (("queues", "add", "q", "--set", "a=1", "--set", "a.b=2"), "cannot both be set"),
        (("queues", "set", "q"), "nothing to change"),
    ],
)
async def test_wrong_option_is_one_line(
    served: Served, board: Board, arguments: tuple[str, ...], text: str
) -> None:
    done = await forebay(served, *arguments)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert text in done.stderr.decode()
    assert board.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("pull",),
        *(("dead", name) for name in ("ls", "show", "retry", "edit", "rm")),
        *(("queues", name) for name in ("ls", "show", "add", "set", "rm", "pause", "resume")),
    ],
    ids=" ".join,
)
def test_help_teaches_with_an_example(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from daemon.cli.main import app

    monkeypatch.setenv("COLUMNS", "200")
    app([*arguments, "--help"], standalone_mode=False)
    out = capsys.readouterr().out
    assert f"forebay {' '.join(arguments)}" in out.partition("Example")[2]
