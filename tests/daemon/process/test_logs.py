import errno
import io
import json
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from actors.config.settings import LogSettings
from actors.model.secret_values import SECRET_VALUES
from daemon.process import logs
from daemon.process.terminal import guard


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_what_is_no_terminal_gets_a_json_object_a_line() -> None:
    stream = io.StringIO()
    logs.set_up(LogSettings(), stream)
    structlog.get_logger("name").info("spooler.chunk_sealed", chunk="00ff", bytes=5, text="a\nb")
    assert stream.getvalue().startswith('{"timestamp": "')
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line.pop("timestamp"))
    assert line == {
        "level": "info",
        "event": "spooler.chunk_sealed",
        "chunk": "00ff",
        "bytes": 5,
        "text": "a\nb",
    }


def test_a_terminal_gets_a_readable_line() -> None:
    stream = Terminal()
    logs.set_up(LogSettings(), stream)
    structlog.get_logger().warning("spooler.disk_full", free=5)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert plain != stream.getvalue()
    assert re.fullmatch(r"\S+Z \[warning +\] spooler\.disk_full +free=5\n", plain)


def test_the_format_can_be_chosen() -> None:
    terminal, file = Terminal(), io.StringIO()
    logs.set_up(LogSettings(format="json"), terminal)
    structlog.get_logger().info("a.b")
    assert lines(terminal)[0]["event"] == "a.b"
    logs.set_up(LogSettings(format="console"), file)
    structlog.get_logger().info("a.b")
    assert "[info" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    logs.set_up(LogSettings(level="warning"), stream)
    log = structlog.get_logger()
    for say in (log.debug, log.info, log.warning, log.error):
        say("a.b")
    assert [line["level"] for line in lines(stream)] == ["warning", "error"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_an_exception_is_shown_with_where_it_was_raised(style: Any) -> None:
    stream = io.StringIO()
    logs.set_up(LogSettings(format=style), stream)
    try:
        raise LookupError("nothing there")
    except LookupError:
        structlog.get_logger().exception("spooler.failed")
    assert "LookupError: nothing there" in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()
    if style == "json":
        assert len(lines(stream)) == 1


@pytest.mark.parametrize("style", ["json", "console"])
def test_passwords_in_addresses_are_masked(style: Any) -> None:
    stream = io.StringIO()
    logs.set_up(LogSettings(format=style), stream)
    try:
        raise LookupError("no answer from redis://u:hush@h")
    except LookupError:
        structlog.get_logger().exception("a.b", error="503 from https://h/?token=hush")
    assert "hush" not in stream.getvalue()
    assert "redis://u:***@h" in stream.getvalue()
    assert "https://h/?token=***" in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_known_secrets_are_masked_wherever_they_are(style: Any) -> None:
    secret = 'a "secret" of the log'
    SECRET_VALUES.add(secret)
    stream = io.StringIO()
    logs.set_up(LogSettings(format=style), stream)
    try:
        raise LookupError(f"no answer to {secret}")
    except LookupError:
        structlog.get_logger().exception("a.b", **{secret: 1}, tree={"x": [secret]}, text=secret)
    assert "of the log" not in stream.getvalue()
    assert "no answer to ***" in stream.getvalue()


def test_the_process_shows_no_known_secret_when_it_dies() -> None:
    SECRET_VALUES.add("a-secret-of-stderr")
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(sys, "stdout", io.StringIO())
        guard()
        try:
            raise LookupError("no answer to a-secret-of-stderr")
        except LookupError:
            traceback.print_exc()
    assert "LookupError: no answer to ***" in stream.getvalue()
    assert "a-secret" not in stream.getvalue()


def test_values_that_json_does_not_know_are_shown_all_the_same() -> None:
    stream = io.StringIO()
    logs.set_up(LogSettings(), stream)
    structlog.get_logger().info("a.b", data=b"\xff", error=OSError(28, "full"))
    (line,) = lines(stream)
    assert line["data"] == r"b'\xff'"
    assert "full" in line["error"]


def test_a_log_on_a_full_disk_does_not_stop_the_daemon() -> None:
    logs.set_up(LogSettings(), FullDisk())
    structlog.get_logger().error("spooler.disk_full")


def test_a_closed_log_does_not_stop_the_daemon() -> None:
    stream = io.StringIO()
    logs.set_up(LogSettings(), stream)
    stream.close()
    structlog.get_logger().error("spooler.disk_full")
