"""No text from outside steers the operator's terminal: hostile names, errors and payloads are put
into every place that takes them, and every command that shows them is read on a real terminal."""

import asyncio
import json
import os
import pty
import re
import threading
from collections.abc import Iterator

import pytest

from daemon.cli.stats.sampling import Asker
from daemon.cli.top.app import TopApp
from daemon.cli.top.view import column_of
from daemon.cli.top.widgets import Sheet
from daemon.process.terminal import clean, json_text
from forebay import connect, encode_run
from forebay.writes import WRITE_HEADER, new_write_id
from tests import forked
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

EVIL = "\x1b[2J\x1b]0;pwned\x07\x9b1A\r\u202egnirts\u2066\x7f\u2028"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[0-9]*[ABCDGJK]|\r(?=\n)")
"""What rich writes itself: colours, and moves of the cursor where a table is drawn in place."""
COMMANDS = (
    *("queues ls", "queues show lost", "stats", "stats --queue lost", "top --once", "dead ls"),
    *("dead groups", "breakers ls", "history lost", "history kept", "streams ls", "writes ls"),
    *("writes ls --all", "cron ls", "cron show evil", "triggers ls", "triggers show evil"),
    *("items ls --queue lost", "items ls --queue feed", "config show"),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    place = tmp_path_factory.mktemp("terminal")
    said = place / "said"
    said.write_text(EVIL)
    dying = {"type": "command", "command": ["sh", "-c", f"cat {said} >&2; exit 65"]}
    config = {
        "queues": {
            "lost": {"handler": dying, "description": EVIL, "breaker": {"enabled": False}},
            "kept": {"handler": {"type": "null"}, "history": "all"},
            "feed": {"handler": {"type": "pull"}},
            "read": {"handler": {"type": "pull"}},
        },
        "schedules": {
            "evil": {"queue": "later", "every": "1h", "payload": EVIL, "headers": {"h": EVIL}}
        },
        "log": {"format": "console"},
    }
    with running(Host(place, config)) as host:
        with connect(host.socket) as client:
            for queue in ("lost", "kept", "feed", "read"):
                client.push(
                    queue,
                    [EVIL.encode()],
                    keys=[EVIL[:8]],
                    flow=EVIL,
                    action=EVIL,
                    headers={"h": EVIL},
                )
            client.claim("read", EVIL, after=0)
            write = new_write_id()
            stage = client.stage(write)
            headers = {WRITE_HEADER: write.hex()}
            stage.submit(encode_run([EVIL.encode()], queue="feed", headers=headers))
            client.publish(write, [stage.seal().stage], app=EVIL, version=1)
        eventually_sync(lambda: host.books("lost").get("dead") == 1)
        yield host


def on_a_terminal(host: Host, *args: str) -> str:
    """What a command writes to a terminal, which it takes for its operator's."""
    ours, its = pty.openpty()
    read: list[bytes] = []

    def take() -> None:
        # EIO: the last process that had the terminal is gone.
        try:
            while data := os.read(ours, 65536):
                read.append(data)
        except OSError:
            pass

    reader = threading.Thread(target=take)
    with open(its, "wb", buffering=0) as terminal:
        process = forked.start(args, host.environment, terminal)
    reader.start()
    process.wait(HANG_S)
    reader.join(HANG_S)
    os.close(ours)
    return b"".join(read).decode(errors="replace")


def check(text: str) -> None:
    found = UNSAFE.search(OWN.sub("", text))
    assert found is None, ascii(text)


@pytest.mark.parametrize("command", [*COMMANDS, "spool dump"])
def test_commands_write_clean_text_to_a_terminal(host: Host, command: str) -> None:
    shown = on_a_terminal(host, *command.split())
    assert "Usage" not in shown
    check(shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_write_clean_text_to_a_pipe(host: Host, command: str) -> None:
    """It may end on a terminal, as with `| head`."""
    done = host.command(*command.split())
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode() + done.stderr.decode()
    assert UNSAFE.search(shown) is None, ascii(shown)


def test_single_items_are_clean_and_their_json_is_exact(host: Host) -> None:
    (line,) = host.ok("dead", "ls", "--json").splitlines()
    letter = json.loads(line)
    assert (letter["flow"], letter["headers"]) == (EVIL, {"h": EVIL})
    assert UNSAFE.search(line) is None
    for command in ("dead", "items"):
        shown = on_a_terminal(host, command, "show", letter["id"])
        assert clean(EVIL) in shown
        check(shown)
        check(on_a_terminal(host, command, "show", letter["id"], "--json"))
    check(on_a_terminal(host, "dead", "show", letter["id"], "--raw"))


def test_a_payload_is_raw_in_a_pipe_and_clean_on_a_terminal(host: Host) -> None:
    for form in ("raw", "ndjson"):
        check(on_a_terminal(host, "pull", "feed", "-n", "1", "--no-ack", "--format", form))
    raw = host.command("pull", "feed", "-n", "1", "--no-ack", "--format", "raw")
    assert raw.stdout == EVIL.encode() + b"\n"
    line = host.ok("pull", "feed", "-n", "1", "--no-ack")
    assert json.loads(line)["payload"] == EVIL


def test_errors_are_clean(host: Host) -> None:
    for args in (("queues", "show", EVIL), (EVIL,), ("pull", "feed", "--wait", EVIL)):
        shown = on_a_terminal(host, *args)
        assert shown.startswith("forebay: ")
        check(shown)


def test_top_draws_clean_text(host: Host) -> None:
    async def look() -> str:
        app = TopApp(Asker(str(host.socket)), 0.1, "", column_of("queue"))
        async with app.run_test(size=(130, 60)) as pilot:
            while "pwned" not in str(app.query_one("#groups").render()):
                while app.chosen_name != "lost":
                    await pilot.press("down")
                await pilot.pause(0.01)
            drawn = app.export_screenshot()
            await pilot.press("enter")
            while not isinstance(app.screen, Sheet):
                await pilot.pause(0.01)
            return drawn + app.export_screenshot()

    drawn = asyncio.run(asyncio.wait_for(look(), HANG_S))
    assert "pwned" in drawn
    assert UNSAFE.search(drawn) is None


def test_the_log_is_clean_on_a_console(host: Host) -> None:
    def written() -> None:
        text = (host.directory / "daemon.log").read_text()
        assert "delivery.dead" in text
        check(text)

    eventually_sync(written)


def test_json_keeps_its_value() -> None:
    value = {"a": [EVIL, "\ud800", "\U000e0041", "plain ünicode\n\t"]}
    assert json.loads(json_text(value)) == value
    assert clean(json_text(value)) == json_text(value)
    assert "ünicode" in json_text(value)
