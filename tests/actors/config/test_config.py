import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import AfterValidator, BaseModel

from actors.config.handlers import AnyHandler, FileHandler, NullHandler, PullHandler
from actors.config.queue import QueueSettings
from actors.config.settings import Settings
from actors.model.units import Within
from daemon.config.load import load, load_with_origins
from daemon.config.yaml_source import read_yaml
from daemon.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "etc" / "forebay.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "forebay.yaml"


def problems(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    return list(caught.value.problems)


class TestStrength:
    def test_nothing_given_is_the_default(self) -> None:
        settings = load(flags={"socket": "/s", "state_dir": "/d"})
        assert settings == Settings.model_validate({"socket": {"path": "/s"}, "state_dir": "/d"})

    def test_flags_beat_environment_beats_file(self, config: Path) -> None:
        config.write_text("spool: {max_bytes: 2Gi, max_size: 2, spare_chunks: 5}\nstate_dir: /2\n")
        env = {
            "FOREBAY_CONFIG": str(config),
            "FOREBAY_STATE_DIR": "/3",
            "FOREBAY_SPOOL__MAX_BYTES": "3Gi",
            "FOREBAY_SPOOL__MAX_SIZE": "3",
        }
        settings = load(env=env, sets=["spool.max_bytes=4Gi"], flags={"state_dir": "/4"})
        assert settings.spool.max_bytes == 4 * 2**30
        assert settings.spool.max_size == 3
        assert settings.spool.spare_chunks == 5
        assert settings.state_dir == Path("/4")

    def test_the_file_of_the_flag_beats_that_of_the_environment(self, config: Path) -> None:
        config.write_text("drain_timeout: 1s")
        assert load(config, {"FOREBAY_CONFIG": "/nowhere.yaml"}).drain_timeout == 1

    def test_places_have_variables_and_flags_of_their_own(self) -> None:
        env = {"FOREBAY_SOCKET": "/e.sock", "FOREBAY_STATE_DIR": "/e", "FOREBAY_HTTP": "[::1]:1"}
        settings = load(env=env)
        assert settings.socket.path == Path("/e.sock")
        assert settings.state_dir == Path("/e")
        assert settings.http.listen == "[::1]:1"
        flags = {"socket": "/f.sock", "state_dir": None, "http": None}
        assert load(env=env, flags=flags).socket.path == Path("/f.sock")

    def test_every_value_knows_where_it_was_written(self, config: Path) -> None:
        config.write_text(
            "defaults:\n  max_retries: 3\nqueues:\n  crm:\n    full_policy: block\n"
            "log: {level: error}\n"
        )
        loaded = load_with_origins(
            config, {"FOREBAY_LOG__LEVEL": "debug"}, ["spool={max_size: 5}"], {"socket": "/s"}
        )
        origins = {
            "queues.crm.full_policy": f"{config}:5",
            "queues.crm.max_retries": f"{config}:2",
            "queues.crm.history": "default",
            "log.level": "FOREBAY_LOG__LEVEL",
            "spool.max_size": "--set",
            "spool.max_bytes": "default",
            "socket.path": "--socket",
            "state_dir": "default",
        }
        assert {key: loaded.origin(tuple(key.split("."))) for key in origins} == origins


class TestEnvironment:
    def test_an_empty_variable_counts_as_not_set(self) -> None:
        env = {"FOREBAY_SPOOL__MAX_BYTES": "", "FOREBAY_SOCKET": "", "FOREBAY_CONFIG": ""}
        assert load(env=env) == load()

    @pytest.mark.parametrize(
        "name", ["FOREBAY_SERVICE_HOST", "FOREBAY_PORT", "FOREBAY_PORT_8077_TCP_ADDR"]
    )
    def test_what_kubernetes_sets_for_a_service_is_not_taken_for_settings(self, name: str) -> None:
        assert load(env={name: "tcp://10.0.0.1:8077"}) == load()

    def test_a_queue_with_capitals_is_found(self, config: Path) -> None:
        config.write_text("queues: {CRM: {max_retries: 1}}")
        settings = load(config, {"FOREBAY_QUEUES__CRM__MAX_RETRIES": "2"})
        assert {name: queue.max_retries for name, queue in settings.queues.items()} == {"CRM": 2}

    def test_an_unknown_variable_fails_with_the_right_one(self) -> None:
        env = {"FOREBAY_SPOOL_MAX_BYTES": "1Gi", "FOREBAY_SPOOL__MAXBYTES": "1Gi"}
        assert problems(env=env) == [
            "FOREBAY_SPOOL__MAXBYTES: spool.maxbytes: no such key; "
            "did you mean FOREBAY_SPOOL__MAX_BYTES?",
            "FOREBAY_SPOOL_MAX_BYTES: spool_max_bytes: no such key; "
            "did you mean FOREBAY_SPOOL__MAX_BYTES?",
        ]


class TestSet:
    def test_a_name_with_dots_is_quoted(self) -> None:
        settings = load(sets=['queues."crm.eu".max_retries=3'])
        assert settings.queues["crm.eu"].max_retries == 3

    def test_the_last_one_wins(self) -> None:
        assert load(sets=["spool.max_size=1", "spool.max_size=2"]).spool.max_size == 2

    def test_values_are_yaml(self) -> None:
        sets = ["socket.allow_uids=[1, 2]", "auto_create_queues=false", "socket.mode=0600"]
        settings = load(sets=[*sets, "queues.q={handler: {type: null}}", "http.listen=null"])
        assert settings.socket.allow_uids == (1, 2)
        assert settings.socket.mode == 0o600
        assert not settings.auto_create_queues
        assert settings.queues["q"].handler == NullHandler()
        assert settings.http.listen is None

    def test_plain_text_needs_no_quotes(self) -> None:
        settings = load(sets=["queues.q.description=ours: #1, not theirs"])
        assert settings.queues["q"].description == "ours: #1, not theirs"

    @pytest.mark.parametrize("text", ["spool.max_bytes", "=1", "a..b=1", '"a=1', ".a=1"])
    def test_what_is_no_key_and_value_is_refused(self, text: str) -> None:
        expected = f"--set: {text!r} is not KEY=VALUE, as spool.max_bytes=2Gi"
        assert problems(sets=[text]) == [expected]

    def test_broken_yaml_is_refused(self) -> None:
        expected = "--set socket.allow_uids: '[1' is not YAML"
        assert problems(sets=["socket.allow_uids=[1"]) == [expected]


class TestProblems:
    def test_every_problem_is_a_line_with_its_place(self, config: Path) -> None:
        config.write_text(
            "spool:\n"
            "  max_byts: 1Gi\n"
            "  durability: sync\n"
            "  inmemory_runs: lots\n"
            "  chunk_size: 1Ti\n"
            "  meta_sync_interval: soon\n"
            "log: info\n"
            "queues:\n"
            "  crm:\n"
            "    handler: {type: file, pth: /x}\n"
            "  a/b: {}\n"
            "chunk_size: 1Mi\n"
            "socket: {mode: 660}\n"
        )
        queue_name = (
            "'a/b' is not a valid queue name: 1 to 128 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
        assert set(problems(config)) == {
            f"{config}:2: spool.max_byts: no such key; did you mean spool.max_bytes?",
            f"{config}:3: spool.durability: must be 'fsync', 'os' or 'memory', not \"sync\"",
            f'{config}:4: spool.inmemory_runs: must be a valid integer, not "lots"',
            f"{config}:5: spool.chunk_size: 1Ti is outside 64Ki..1Gi",
            f"{config}:6: spool.meta_sync_interval: 'soon' is not a duration: "
            "write seconds or a unit, as 30s or 250ms",
            f'{config}:7: log: must hold keys and values, not "info"',
            f"{config}:10: queues.crm.handler.path: must be given",
            f"{config}:10: queues.crm.handler.pth: no such key; "
            "did you mean queues.crm.handler.path?",
            f"{config}:11: queues.a/b: {queue_name}",
            f"{config}:12: chunk_size: no such key; did you mean spool.chunk_size?",
            f"{config}:13: socket.mode: 660 is not a file mode: "
            'write octal digits in quotes, as "0660"',
        }

    def test_what_has_a_name_of_its_own_has_keys_of_its_own(self, config: Path) -> None:
        config.write_text(
            "schedules: {s: {queue: x, crom: '* * * * *', every: 5s}}\n"
            "triggers:\n"
            "  a: {type: QUEUE, queue: x, target: t, polling_intervall: 5s}\n"
            "  b: {type: QUEUE, queue: x, target: x}\n"
            "  c: {queue: x}\n"
            "notifications: {n: {webhook: {url: 'http://h/', timeuot: 5s}}}\n"
        )
        assert set(problems(config)) == {
            f"{config}:1: schedules.s.crom: no such key; did you mean schedules.s.cron?",
            f"{config}:3: triggers.a.polling_intervall: no such key; "
            "did you mean triggers.a.polling_interval?",
            f"{config}:4: triggers.b: queue and target are the same: its jobs would be claimed",
            f"{config}:5: triggers.c: needs a type, as {{type: QUEUE}}",
            f"{config}:6: notifications.n.webhook.timeuot: no such key; "
            "did you mean notifications.n.webhook.timeout?",
        }

    def test_a_key_like_no_other_gets_no_suggestion(self) -> None:
        assert problems(sets=["xyzzy=1"]) == ["--set: xyzzy: no such key"]

    def test_a_wrong_default_is_reported_once(self, config: Path) -> None:
        config.write_text("defaults: {max_retries: -1}\nqueues: {a: {}, b: {}}\n")
        assert problems(config) == [f"{config}:1: defaults.max_retries: -1 is outside 0..65534"]

    def test_a_template_without_quotes_is_explained(self, config: Path) -> None:
        config.write_text("queues:\n  q: {handler: {request: {item: {id: {{ key }}}}}}\n")
        assert problems(config) == [
            f'{config}:2: put templates into quotes, as "{{{{ payload.id }}}}"'
        ]

    def test_a_key_that_is_missing_is_reported_where_its_section_is(self, config: Path) -> None:
        config.write_text(
            "queues:\n  q:\n    handler: {type: http, url: 'http://h/',\n"
            "      auth: {type: api_key, key: {env: A}}}\n"
        )
        assert problems(config) == [
            f"{config}:4: queues.q.handler.auth: give either header or query: where the key goes"
        ]

    def test_a_clash_names_both_places(self, config: Path) -> None:
        config.write_text("spool:\n  max_bytes: 100Mi\n")
        assert problems(config, {"FOREBAY_SPOOL__CHUNK_SIZE": "60Mi"}) == [
            f"{config}:2, FOREBAY_SPOOL__CHUNK_SIZE: spool: max_bytes (100Mi) must be at least "
            "twice chunk_size (60Mi), so that one chunk can be freed while the next is written"
        ]

    @pytest.mark.parametrize(
        "setting,message",
        [
            ("spool.chunk_size=1Mi", "spool.chunk_size (1Mi) must take a run of socket.max_run_by"),
            (
                "socket.window_bytes=4Mi",
                "window_bytes (4Mi) must take a run of max_run_bytes (4Mi)",
            ),
            ("socket.inflight_bytes=8Mi", "inflight_bytes (8Mi) must be at least window_bytes (16"),
            ("socket.max_run_bytes=65Mi", "socket.max_run_bytes: 65Mi is outside 1Ki..64Mi"),
            ("http.listen=0.0.0.0:80", "listen (0.0.0.0:80) is not a loopback address: it needs"),
            ("http.listen=8077", "must be a valid string, not 8077"),
            ("http.listen=localhost", "'localhost' is not HOST:PORT"),
            ("http.listen=:80", "':80' is not HOST:PORT"),
            ("http.listen=localhost:99999", "'localhost:99999' is not HOST:PORT"),
            ("defaults.backoff.max=1s", "initial (5s) must not be longer than max (1s)"),
            ("defaults.workers={min: 5, max: 2}", "min (5) must not be more than max (2)"),
            ("priorities.urgent=256", "priorities.urgent: 256 is outside 0..255"),
            ("spool.max_size=true", "spool.max_size: must be a valid integer, not true"),
            ("socket.path=/" + "x" * 107, "path has at most 107 bytes, not 108"),
            ("warm={type: valkey}", "type valkey needs a url"),
            ("cold={type: postgres}", "type postgres needs a url"),
            ("warm.url=redis://localhost", "url is not valid for type memory"),
            ("cold.url=postgresql://localhost", "url is not valid for type sqlite"),
            (
                "warm={type: valkey, url: 'redis://localhost'}",
                "warm.type valkey needs cold.type postgres",
            ),
            (
                'queues.q.handler={type: file, path: "/{q}"}',
                "the only placeholders are {queue} and {time}",
            ),
        ],
    )
    def test_limits_that_cannot_hold_are_refused(self, setting: str, message: str) -> None:
        (line,) = problems(sets=[setting])
        assert message in line

    @pytest.mark.parametrize(
        "handler,message",
        [
            ("{type: http}", "handler.url: must be given"),
            ("{type: http, url: x}", "is not a valid URL: use"),
            ('{type: http, url: "http://user:hush@host/"}', "has no user, password or fragment"),
            ('{type: http, url: "http://host/", headers: {Host: x}}', "Host is set by forebay"),
            ('{type: http, url: "http://host/", ca_file: /x}', "needs an https url"),
            (
                '{type: http, url: "http://h/", auth: {}}',
                "auth: needs a type, as {type: bearer}",
            ),
            (
                '{type: http, url: "http://h/", auth: {type: bearer, token: {env: A}, scoep: x}}',
                "handler.auth.scoep: no such key; did you mean queues.q.handler.auth.scope?",
            ),
            (
                '{type: http, url: "http://h/", auth: {type: bearer, token: {env: A}, key: x}}',
                "queues.q.handler.auth.key: no such key for this type",
            ),
            (
                '{type: http, url: "http://h/", request: {items: {}}}',
                "handler.request.items: no such key; did you mean queues.q.handler.request.item?",
            ),
            (
                '{type: http, url: "http://h/", rate_limit: 5}',
                "handler.rate_limit: no such key; did you mean queues.q.rate_limit?",
            ),
            (
                '{type: http, url: "http://h/", encoding: raw, request: {item: {}}}',
                "encoding has no effect with request: leave it out",
            ),
            (
                '{type: http, url: "http://h/", auth: {type: api_key, key: {env: A}}}',
                "queues.q.handler.auth: give either header or query",
            ),
            (
                '{type: http, url: "http://h/", auth: {type: bearer, token: hush}}',
                "queues.q.handler.auth.token: a",
            ),
            ("{type: python, function: x}", "is not of the form module:function"),
            ("{type: command, command: []}", "at least 1 item"),
            ("{type: file, path: /x.parquet, format: parquet}", "needs {time} in its name"),
        ],
    )
    def test_handlers_that_cannot_work_are_refused(self, handler: str, message: str) -> None:
        (line,) = problems(sets=[f"queues.q.handler={handler}"])
        assert message in line
        assert "hush" not in line

    def test_a_handler_without_a_type_discards_nothing(self, config: Path) -> None:
        config.write_text("queues:\n  a: {handler: null}\n  b: {handler: {type: }}\n")
        assert problems(config) == [
            f"{config}:2: queues.a.handler: must hold keys and values, not null",
            f"{config}:3: queues.b.handler: needs a type, as {{type: file}}",
        ]

    def test_a_file_that_cannot_be_read_is_one_line(self, tmp_path: Path) -> None:
        missing = tmp_path / "no.yaml"
        assert problems(missing) == [f"{missing}: cannot be read: No such file or directory"]


class TestQueues:
    def test_a_queue_has_the_defaults_beneath_it(self, config: Path) -> None:
        config.write_text(
            "defaults: {max_retries: 3, backoff: {initial: 1s, jitter: 0}}\n"
            "queues: {crm: {backoff: {initial: 2s}}}\n"
        )
        crm = load(config).queues["crm"]
        assert crm.max_retries == 3
        assert (crm.backoff.initial, crm.backoff.jitter, crm.backoff.max) == (2, 0, 300)

    def test_another_type_of_handler_leaves_the_default_handlers_keys(self, config: Path) -> None:
        config.write_text(
            "defaults: {handler: {type: file, path: '/x/{queue}', fsync: true}}\n"
            "queues: {a: {handler: {type: pull}}, b: {handler: {type: null}}, c: {}}\n"
        )
        queues = load(config).queues
        assert queues["a"].handler == PullHandler()
        assert queues["b"].handler == NullHandler()
        assert queues["c"].handler == FileHandler(path=Path("/x/{queue}"), fsync=True)

    @pytest.mark.parametrize("written", ["null", '"null"', "'null'", "~"])
    def test_null_is_a_handler_however_it_is_quoted(self, config: Path, written: str) -> None:
        config.write_text(f"queues: {{q: {{handler: {{type: {written}}}}}}}")
        assert load(config).queues["q"].handler == NullHandler()

    def test_items_of_an_unconfigured_queue_wait(self) -> None:
        assert load().defaults.handler == PullHandler()

    def test_unknown_queues_are_created_from_the_defaults_or_not_at_all(self) -> None:
        sets = ["defaults.max_retries=1", "queues.known.max_retries=2"]
        settings = load(sets=sets)
        assert (settings.queue("new"), settings.queue("known")) == (
            settings.defaults,
            settings.queues["known"],
        )
        assert load(sets=[*sets, "auto_create_queues=false"]).queue("new") is None

    def test_a_file_handler_fills_in_the_queue(self) -> None:
        handler = FileHandler(path=Path("/landing/{queue}/{queue}.jsonl"))
        assert handler.path_for("crm") == Path("/landing/crm/crm.jsonl")


class TestPlaces:
    """`forebay.places`, as the daemon uses it."""

    @pytest.fixture
    def person(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody who is not root. After `tmp_path`: pytest would not trust its own directory."""
        monkeypatch.setattr(os, "getuid", lambda: 4321)

    def places(self, **env: str) -> tuple[str, str]:
        settings = load(env=env)
        return str(settings.socket.path), str(settings.state_dir)

    def test_root_is_a_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 0)
        expected = ("/run/forebay/forebay.sock", "/var/lib/forebay")
        assert self.places(HOME="/root", XDG_RUNTIME_DIR="/run/user/0") == expected

    @pytest.mark.usefixtures("person")
    def test_a_unit_uses_the_directories_that_systemd_made(self) -> None:
        env = {"RUNTIME_DIRECTORY": "/run/fb:/run/other", "STATE_DIRECTORY": "/var/lib/fb"}
        assert self.places(**env) == ("/run/fb/forebay.sock", "/var/lib/fb")

    @pytest.mark.usefixtures("person")
    def test_a_person_has_their_own(self, tmp_path: Path) -> None:
        env = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": "/home/me/state"}
        assert self.places(**env) == (
            f"{tmp_path}/forebay/forebay.sock",
            "/home/me/state/forebay",
        )

    @pytest.mark.usefixtures("person")
    def test_without_a_session_all_is_in_the_home_directory(self) -> None:
        expected = ("/home/me/.local/state/forebay/forebay.sock", "/home/me/.local/state/forebay")
        assert self.places(HOME="/home/me", XDG_STATE_HOME="relative/is/ignored") == expected

    @pytest.mark.usefixtures("person")
    def test_null_in_the_file_means_the_default_place(self, config: Path) -> None:
        config.write_text("state_dir: null\nsocket: {path: null}\n")
        env = {"HOME": "/home/me"}
        assert load(config, env) == load(env=env)


class TestYaml:
    def test_words_are_words(self) -> None:
        tree = read_yaml(
            b"{a: off, b: no, 1: 0660, d: 12:30, e: 2024-01-01, f: 1e3, g: 1_000}", "f"
        )
        assert tree.tree == {
            "a": "off",
            "b": "no",
            "1": "0660",
            "d": "12:30",
            "e": "2024-01-01",
            "f": 1000.0,
            "g": 1000,
        }

    def test_a_key_with_nothing_after_it_is_not_written(self, config: Path) -> None:
        config.write_text("spool:\n  # max_bytes: 2Gi\nqueues:\n")
        assert load(config) == load()

    def test_an_empty_file_is_the_defaults(self, config: Path) -> None:
        config.write_text("# nothing yet\n")
        assert load(config) == load()

    def test_anchors_and_merge_keys_work(self) -> None:
        source = read_yaml(b"a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", "f")
        assert source.tree["b"] == {"x": 1, "y": 3}

    @pytest.mark.parametrize(
        "written,problem",
        [
            ("a: 1\nb: {c: 1, c: 2}", "f:2: 'c' is written twice, first in line 2"),
            ("spool: 1\n\nspool: 2", "f:3: 'spool' is written twice, first in line 1"),
            ("a: [", "f:1: not YAML: expected the node content, but found '<stream end>'"),
            ("a: b: c", "f:1: not YAML: mapping values are not allowed here"),
            ("- a", "f: the file must hold keys and values, as `spool: ...`"),
            ("? [a]\n: 1", "f:1: a key must be plain text"),
            ("a: &a [*a]", "f:1: an alias that contains itself"),
            ("a: 1\n---\nb: 1", "f:2: not YAML: but found another document"),
            ("a: !secret x", "f:1: not YAML: could not determine a constructor for the tag '!se"),
            ("a: !!int x", "f: not YAML: invalid literal for int()"),
            ("[" * 1000, "f: not YAML: maximum recursion depth exceeded"),
            ("a: \x00", "f: not YAML: unacceptable character #x0000"),
        ],
    )
    def test_what_is_not_plain_yaml_is_one_line(self, written: str, problem: str) -> None:
        with pytest.raises(ConfigError) as caught:
            read_yaml(written.encode(), "f")
        (line,) = caught.value.problems
        assert line.startswith(problem)
        assert "\n" not in line


class TestExampleFile:
    """etc/forebay.yaml is the reference: it must not drift from the models."""

    def test_it_loads_and_says_the_defaults(self) -> None:
        assert load(EXAMPLE) == load()

    def test_every_key_is_in_it(self) -> None:
        written = set(read_yaml(EXAMPLE.read_bytes(), "f").origins)
        assert {path for path, _ in every_key(Settings)} <= written

    def test_every_range_stands_beside_its_key(self) -> None:
        lines = EXAMPLE.read_text().splitlines()
        origins = read_yaml(EXAMPLE.read_bytes(), "f").origins
        for path, within in every_key(Settings):
            if within is not None:
                line = lines[int(origins[path].removeprefix("f:")) - 1]
                # As a word of its own: 1..10 is not to be found in 1..100.
                assert str(within) in line.replace(";", " ").split(), path

    def test_the_queue_that_is_commented_out_is_right(self, config: Path) -> None:
        before, after = EXAMPLE.read_text().split("queues: {}")
        config.write_text(before + "queues:" + after.replace("\n#  ", "\n  "))
        assert set(load(config).queues) == {"crm"}

    @pytest.mark.parametrize("model", get_args(AnyHandler), ids=lambda model: model.__name__)
    def test_the_keys_of_handlers_are_explained(self, model: type[BaseModel]) -> None:
        """Each key stands after its handler's line, before the next handler's."""
        kind = model.model_fields["type"].default
        text = EXAMPLE.read_text()
        marker = f"{{type: {kind}" if kind != "null" else '{type: "null"}'
        assert marker in text, f"etc/forebay.yaml: explain {marker} among the handlers"
        start = text.index(marker)
        end = text.find("#   {type:", start)
        explained = text[start : end if end > 0 else text.index("warm_max_items")]
        for key in model.model_fields:
            assert f"{key}:" in explained, key


def every_key(
    model: type[BaseModel], parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Within | None]]:
    """The path of every key of a model and those below it, with its range if it has one."""
    for name, info in model.model_fields.items():
        path = (*parents, name)
        functions = [part.func for part in info.metadata if isinstance(part, AfterValidator)]
        yield path, next((each for each in functions if isinstance(each, Within)), None)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from every_key(info.annotation, path)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        QueueSettings().max_retries = 3  # type: ignore[misc]
