import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from daemon.cli import exits
from daemon.cli.exits import Exit, explain
from daemon.cli.main import main
from daemon.config.load import load
from daemon.errors import CannotStart, ConfigError
from forebay.errors import BadRun, Refused, Unreachable

Forebay = Callable[..., tuple[int, str, str]]


@pytest.fixture
def forebay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forebay:
    """Runs a command in this process: its exit code, stdout and stderr."""
    for name in os.environ:
        if name.startswith("FOREBAY_"):
            monkeypatch.delenv(name)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forebay", *args])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_a_good_configuration_is_said_to_be_good(forebay: Forebay, tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("queues: {crm: {}, search: {}}")
    assert forebay("config", "check", "--config", str(config)) == (
        Exit.OK,
        "the configuration is good; queues: crm, search\n",
        "",
    )


def test_each_problem_is_a_line_on_stderr_and_the_code_is_3(forebay: Forebay) -> None:
    sets = ("--set", "spool.max_byts=1Gi", "--set", "drain_timeout=soon")
    code, out, err = forebay("config", "check", *sets)
    assert (code, out) == (Exit.CONFIG, "")
    assert sorted(err.splitlines()) == [
        "forebay: --set: drain_timeout: 'soon' is not a duration: "
        "write seconds or a unit, as 30s or 250ms",
        "forebay: --set: spool.max_byts: no such key; did you mean spool.max_bytes?",
    ]


def test_what_show_prints_can_be_used_as_a_file(forebay: Forebay, tmp_path: Path) -> None:
    sets = ["spool.max_bytes=3GB", "socket.mode=0600", "queues.q.handler={type: null}"]
    code, out, _ = forebay("config", "show", *(part for each in sets for part in ("--set", each)))
    assert code == Exit.OK
    assert "max_bytes: 3GB\n" in out
    config = tmp_path / "shown.yaml"
    config.write_text(out)
    assert load(config, os.environ) == load(None, os.environ, sets)


def test_json_has_plain_numbers(forebay: Forebay) -> None:
    code, out, _ = forebay("config", "show", "--json")
    assert code == Exit.OK
    tree = json.loads(out)
    assert tree["spool"]["max_bytes"] == 2**30
    assert tree["defaults"]["backoff"]["max"] == 300


def test_origins_say_where_a_value_was_written(
    forebay: Forebay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_LOG__LEVEL", "debug")
    args = ("config", "show", "--origins", "--socket", "/s", "--set", "spool.max_size=5")
    lines = forebay(*args)[1].splitlines()
    assert 'socket.path = "/s"  # --socket' in lines
    assert "spool.max_size = 5  # --set" in lines
    assert 'log.level = "debug"  # FOREBAY_LOG__LEVEL' in lines
    assert 'spool.max_bytes = "1Gi"  # default' in lines
    as_json = json.loads(forebay(*args, "--json")[1])
    assert as_json["spool.max_size"] == {"value": 5, "origin": "--set"}


def test_show_covers_every_setting(forebay: Forebay) -> None:
    shown = yaml.safe_load(forebay("config", "show")[1])
    assert shown.keys() == type(load()).model_fields.keys()


@pytest.mark.parametrize(
    "args,line",
    [
        (
            ["confg"],
            "forebay: No such command 'confg'. Did you mean 'config', 'cron'? (see forebay --help)",
        ),
        (["config", "show", "--foo"], "forebay: No such option: --foo (see forebay config show "),
        (["run", "--set"], "forebay: Option '--set' requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(
    forebay: Forebay, args: list[str], line: str
) -> None:
    code, out, err = forebay(*args)
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_run_refuses_a_wrong_configuration_before_anything_starts(
    forebay: Forebay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.app.main", lambda _: pytest.fail("the daemon was started"))
    code, _, err = forebay("run", "--http", "nowhere")
    assert code == Exit.CONFIG
    assert err.startswith("forebay: --http: http.listen: 'nowhere' is not HOST:PORT")


def test_version_and_help_answer(forebay: Forebay) -> None:
    assert forebay("--version")[:2] == (Exit.OK, "forebay 0.1.0\n")
    code, out, _ = forebay("--help")
    assert code == Exit.OK
    assert all(command in out for command in ("run", "push", "stats", "spool", "config"))


@pytest.mark.parametrize(
    "error,line,code",
    [
        (ConfigError("f:1: a", "f:2: b"), "f:1: a\nf:2: b", Exit.CONFIG),
        (CannotStart("the state is held"), "the state is held", Exit.FAILURE),
        (Unreachable("nobody answers"), "nobody answers", Exit.NOT_THERE),
        (Refused("QUEUE_FULL", "no room"), "QUEUE_FULL: no room", Exit.REFUSED),
        (BadRun("no run"), "no run", Exit.FAILURE),
        (FileNotFoundError(2, "No such file", "/x"), "/x: No such file", Exit.FAILURE),
        (OSError(28, "No space left on device"), "No space left on device", Exit.FAILURE),
        (BrokenPipeError(32, "Broken pipe"), "", Exit.FAILURE),
        (KeyboardInterrupt(), "", Exit.INTERRUPTED),
        (ExceptionGroup("", [Unreachable("nobody")]), "nobody", Exit.NOT_THERE),
    ],
)
def test_known_errors_have_a_line_and_a_code(error: BaseException, line: str, code: Exit) -> None:
    lines, got = explain(error)
    assert ("\n".join(lines), got) == (line, code)


def test_a_bug_is_one_line_unless_its_traceback_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = KeyError("a\nb")
    monkeypatch.delenv("FOREBAY_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as caught:
        exits.leave(error)
    assert caught.value.code == Exit.BUG
    assert capsys.readouterr().err.startswith("forebay: internal error: KeyError: ")
    monkeypatch.setenv("FOREBAY_TRACEBACK", "1")
    with pytest.raises(KeyError):
        exits.leave(error)


def test_every_code_is_documented() -> None:
    assert exits.__doc__ is not None
    assert all(f"| {code.value} |" in exits.__doc__ for code in Exit)


def test_the_command_line_loads_nothing_heavy() -> None:
    """What keeps `forebay --help` and `forebay push` quick, whatever the machine."""
    heavy = ["asyncio", "pydantic", "rich", "structlog", "textual", "trio", "yaml"]
    program = f"import sys, daemon.cli.main; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert shown.stdout == b"[]\n"


def test_help_loads_few_modules() -> None:
    """The promise is 300 ms of CPU on an idle machine (200 ms measured), most of it for imports.
    Their number does not depend on the machine."""
    program = (
        "import atexit, sys, daemon.cli.main\n"
        "atexit.register(lambda: print(len(sys.modules), file=sys.stderr))\n"
        "sys.argv = ['forebay', '--help']\n"
        "daemon.cli.main.main()"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert b"push" in shown.stdout
    assert int(shown.stderr) < 500


class TestPresets:
    def test_they_are_listed_with_their_limits(self, forebay: Forebay) -> None:
        code, out, _ = forebay("presets", "ls")
        assert code == Exit.OK
        (line,) = [line for line in out.splitlines() if line.startswith("braze-users")]
        assert "75 objects per request" in line
        code, out, _ = forebay("presets", "ls", "--json")
        names = [json.loads(line)["name"] for line in out.splitlines()]
        assert names == sorted(names)
        assert "webhook" in names

    def test_one_is_printed_as_its_file(self, forebay: Forebay, tmp_path: Path) -> None:
        code, out, _ = forebay("presets", "show", "webhook")
        assert code == Exit.OK
        assert out.startswith("#")
        (tmp_path / "ours.yaml").write_text(out)
        code, out, _ = forebay("presets", "show", "ours", "--presets-dir", str(tmp_path), "--json")
        assert code == Exit.OK
        assert (
            json.loads(out)["handler"]
            == yaml.safe_load((tmp_path / "ours.yaml").read_text())["handler"]
        )

    def test_the_environment_names_the_directory(
        self, forebay: Forebay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "ours.yaml").write_text("{summary: Ours, handler: {}}")
        monkeypatch.setenv("FOREBAY_PRESETS_DIR", str(tmp_path))
        assert "ours" in forebay("presets", "ls")[1]
        assert load(None, os.environ).presets_dir == tmp_path

    def test_an_unknown_one_is_named(self, forebay: Forebay) -> None:
        code, _, err = forebay("presets", "show", "hubspot")
        assert code == Exit.USAGE
        assert "the preset 'hubspot' does not exist; did you mean hubspot-batch?" in err

    def test_a_vendor_without_a_preset_is_warned_about(
        self, forebay: Forebay, tmp_path: Path
    ) -> None:
        config = tmp_path / "f.yaml"
        url = "https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert"
        config.write_text(
            f"queues:\n"
            f"  a: {{handler: {{type: http, url: '{url}'}}}}\n"
            f"  b: {{handler: {{type: http, url: '{url}', answer: {{items: errors, ok: a}}}}}}\n"
            f"  c: {{handler: {{type: http, url: '{url}', preset: webhook}}}}\n"
            f"  d: {{handler: {{type: http, url: 'https://crm.example/'}}}}\n"
        )
        code, out, err = forebay("config", "check", "--config", str(config))
        assert (code, out) == (Exit.OK, "the configuration is good; queues: a, b, c, d\n")
        assert err == (
            "warning: queues.a.handler: api.hubapi.com reports refused items in its own form: "
            "use preset: hubspot-batch, or describe its answers with answer\n"
        )

    def test_a_directory_that_cannot_be_used_is_a_problem(
        self, forebay: Forebay, tmp_path: Path
    ) -> None:
        check = ("config", "check", "--set")
        code, _, err = forebay(*check, f"presets_dir={tmp_path / 'nowhere'}")
        assert (code, err.endswith("nowhere is not a directory\n")) == (Exit.CONFIG, True)
        (tmp_path / "bad.yaml").write_text("[")
        code, _, err = forebay(*check, f"presets_dir={tmp_path}")
        assert code == Exit.CONFIG
        assert "bad.yaml:1: not YAML" in err
