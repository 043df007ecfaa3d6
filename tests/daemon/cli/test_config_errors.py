"""Errors of the configuration end `forebay run` with a code upon which systemd does not start it
again, and `forebay config check` finds them without side effects."""

from pathlib import Path
from typing import Any

import pytest

from actors.config.settings import Settings
from daemon.cli.exits import Exit
from daemon.config.checks import find_problems
from tests.daemon.cli.commands import Host

UNIT = Path(__file__).parents[3] / "systemd" / "forebay.service"


def python(function: str) -> dict[str, Any]:
    return {"queues": {"crm": {"handler": {"type": "python", "function": function}}}}


@pytest.mark.parametrize(
    "settings, problem",
    [
        (python("nowhere:f"), "queues.crm.handler.function: "),
        (python("json.nowhere:f"), "queues.crm.handler.function: "),
        (python("json.nowhere.deeper:f"), "queues.crm.handler.function: "),
        (python("os.path.nowhere:f"), "queues.crm.handler.function: "),
        (
            {"queues": {"crm": {"handler": {"type": "command", "command": ["/no/program"]}}}},
            "queues.crm.handler.command: /no/program does not exist",
        ),
        (
            {
                "queues": {
                    "crm": {"handler": {"type": "http", "url": "https://h/", "ca_file": "/no/file"}}
                }
            },
            "queues.crm.handler.ca_file: /no/file: No such file",
        ),
        (
            {"notifications": {"n": {"webhook": {"url": "https://h/", "ca_file": "/no/file"}}}},
            "notifications.n.webhook.ca_file: /no/file: No such file",
        ),
        ({"cold": {"type": "postgres", "url": "mysql://h/d"}}, "url must begin with postgresql://"),
        (
            {
                "warm": {"type": "valkey", "url": "rediss://h?ssl_ca_certs=/no/file"},
                "cold": {"type": "postgres", "url": "postgresql://127.0.0.1:1/d"},
            },
            "warm.url: ",
        ),
    ],
)
def test_what_the_configuration_names_must_be_there(
    tmp_path: Path, settings: dict[str, Any], problem: str
) -> None:
    host = Host(tmp_path, settings)
    check = host.command("config", "check")
    assert check.returncode == Exit.CONFIG, check.stderr.decode()
    (line,) = check.stderr.decode().splitlines()
    assert problem in line
    if "warm" not in settings:
        # Valkey's turn comes when PostgreSQL is there.
        run = host.command("run")
        assert run.returncode == Exit.CONFIG, run.stderr.decode()
        assert problem in run.stderr.decode().splitlines()[-1]


def test_unknown_group_of_the_socket_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    run = Host(tmp_path).command("run", "--set", "socket.group=no-such-group")
    assert run.returncode == Exit.CONFIG
    assert "socket.group: there is no group no-such-group" in run.stderr.decode()


def test_a_url_that_postgresql_does_not_understand_is_not_waited_for(tmp_path: Path) -> None:
    for url in ("postgresql://h:port/d", "postgresql://127.0.0.1:1/d?sslmode=bogus"):
        host = Host(tmp_path, {"cold": {"type": "postgres", "url": url}})
        run = host.command("run", "--wait-for-stores")
        assert run.returncode == Exit.CONFIG, run.stderr.decode()


def test_check_names_every_problem_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    for name in ("__init__", "work"):
        (package / f"{name}.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    functions = {"a": "mine.work:f", "b": "mine.other:f", "c": "none.work:f", "d": "mine.work.x:f"}
    queues = {
        name: {"handler": {"type": "python", "function": function}}
        for name, function in functions.items()
    }
    assert list(find_problems(Settings.model_validate({"queues": queues}))) == [
        "queues.b.handler.function: there is no module mine.other",
        "queues.c.handler.function: there is no module none",
        "queues.d.handler.function: there is no module mine.work.x",
    ]


def test_systemd_does_not_restart_on_errors_of_the_configuration() -> None:
    (line,) = [
        line for line in UNIT.read_text().splitlines() if line.startswith("RestartPreventExit")
    ]
    assert line.partition("=")[2].split() == [str(int(Exit.USAGE)), str(int(Exit.CONFIG))]
