"""Presets fill in the keys of handlers that queues do not give themselves."""

import os
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.config.catalogue import Catalogue, Definitions
from actors.config.http import HttpHandler
from actors.config.presets import SHIPPED, all_presets, find_preset, preset_for, with_preset
from actors.config.settings import Settings
from daemon.config.load import load, load_with_origins
from daemon.errors import ConfigError
from forebay.errors import Refused
from tests.rig.kept import kept_in_memory

NAMES = [
    "braze-users",
    "elasticsearch-bulk",
    "graphql",
    "hubspot-batch",
    "salesforce-collections",
    "webhook",
]
URL = "https://partner.example/hook"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "forebay.yaml"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory with a preset of an operator."""
    directory = tmp_path / "presets"
    directory.mkdir()
    preset = {"summary": "Ours", "handler": {"batch_items": 7, "timeout": "7s"}}
    (directory / "ours.yaml").write_text(yaml.safe_dump(preset))
    return directory


def http(settings: Settings, queue: str = "crm") -> HttpHandler:
    handler = settings.queues[queue].handler
    assert isinstance(handler, HttpHandler)
    return handler


def filled_in(preset: str, **own: Any) -> dict[str, Any]:
    found: dict[str, Any] = with_preset({"handler": {"preset": preset, **own}}, None)["handler"]
    return found


class TestShipped:
    def test_these_are_there(self) -> None:
        assert [name for name, _ in all_presets()] == NAMES

    @pytest.mark.parametrize("name", NAMES)
    def test_each_says_what_it_is_for_and_is_valid(self, name: str) -> None:
        preset = find_preset(name)
        assert preset.summary
        assert preset.limits
        assert preset.docs.startswith("https://")
        handler = HttpHandler.model_validate(filled_in(name, url=URL))
        assert handler.preset == name

    @pytest.mark.parametrize("name", NAMES)
    def test_each_begins_with_an_example(self, name: str) -> None:
        lines = (SHIPPED / f"{name}.yaml").read_text().splitlines()
        after = dropwhile(lambda line: not line.startswith("#   "), lines)
        shown = takewhile(lambda line: line.startswith("#   "), after)
        text = "\n".join(line[1:] for line in shown).replace(", …", "")
        own = yaml.safe_load(text)["handler"]
        assert own["preset"] == name
        handler = filled_in(**{key: value for key, value in own.items() if key != "auth"})
        assert HttpHandler.model_validate(handler).url == own["url"]

    @pytest.mark.parametrize(
        "host, name",
        [
            ("acme.my.salesforce.com", "salesforce-collections"),
            ("api.hubapi.com", "hubspot-batch"),
            ("API.HUBAPI.COM", "hubspot-batch"),
            ("rest.iad-01.braze.com", "braze-users"),
            ("rest.fra-01.braze.eu", "braze-users"),
            ("abc.es.us-central1.gcp.cloud.es.io", "elasticsearch-bulk"),
            ("search-x.us-east-1.es.amazonaws.com", "elasticsearch-bulk"),
            ("crm.example", None),
            ("salesforce.com.evil.example", None),
        ],
    )
    def test_a_vendor_is_known_by_its_hosts(self, host: str, name: str | None) -> None:
        assert preset_for(host) == name


class TestMerging:
    def test_own_keys_override_those_of_the_preset(self) -> None:
        found = filled_in("salesforce-collections", url=URL, batch_items=50)
        assert (found["type"], found["method"], found["batch_items"]) == ("http", "PATCH", 50)
        assert found["timeout"] == "60s"

    def test_headers_requests_and_answers_are_merged_key_by_key(self) -> None:
        found = filled_in(
            "salesforce-collections",
            headers={"X-Tenant": "acme"},
            request={"item": {"attributes": {"type": "Lead"}}, "query": {"a": "b"}},
            answer={"retry": "again"},
        )
        preset = find_preset("salesforce-collections").handler
        assert found["headers"] == {"Content-Type": "application/json", "X-Tenant": "acme"}
        assert found["request"] == {
            "item": {"attributes": {"type": "Lead"}},
            "query": {"a": "b"},
            "body": preset["request"]["body"],
        }
        assert found["answer"] == preset["answer"] | {"retry": "again"}

    def test_items_and_bodies_are_replaced_as_a_whole(self) -> None:
        body = {"records": "{{ items }}"}
        found = filled_in("salesforce-collections", request={"body": body})
        assert found["request"]["body"] == body

    def test_a_header_is_replaced_however_it_is_written(self) -> None:
        found = filled_in("webhook", headers={"content-type": "text/plain"})
        assert found["headers"] == {"content-type": "text/plain"}

    def test_rules_can_be_taken_away(self) -> None:
        assert filled_in("salesforce-collections", answer=None)["answer"] is None

    def test_doing_it_again_changes_nothing(self) -> None:
        once = with_preset({"handler": {"preset": "hubspot-batch", "timeout": "5s"}}, None)
        assert with_preset(once, None) == once

    @pytest.mark.parametrize(
        "queue", [None, [], {}, {"handler": None}, {"handler": {"preset": 7}}, {"handler": {}}]
    )
    def test_what_names_no_preset_stays_as_it_is(self, queue: Any) -> None:
        assert with_preset(queue, None) == queue

    def test_a_file_that_changes_is_read_again(self, own: Path) -> None:
        assert find_preset("ours", own).summary == "Ours"
        path = own / "ours.yaml"
        path.write_text(path.read_text().replace("Ours", "Theirs"))
        os.utime(path, ns=(1, 1))
        assert find_preset("ours", own).summary == "Theirs"


class TestConfiguration:
    def test_a_queue_names_a_preset(self, config: Path) -> None:
        config.write_text(f"queues: {{crm: {{handler: {{preset: webhook, url: '{URL}'}}}}}}")
        handler = http(load(config))
        assert (handler.preset, handler.batch_items, handler.timeout) == ("webhook", 1, 20)
        assert handler.encoding == "raw"

    def test_a_request_replaces_the_encoding_of_a_preset(self, config: Path) -> None:
        config.write_text(
            f"queues: {{crm: {{handler: {{preset: webhook, url: '{URL}', "
            "request: {body: {data: '{{ payload }}'}}}}}"
        )
        handler = http(load(config))
        assert handler.request is not None
        assert (handler.encoding, handler.batch_items) == ("ndjson", 1)

    def test_a_preset_overrides_the_defaults(self, config: Path) -> None:
        config.write_text(
            f"defaults: {{handler: {{type: http, url: '{URL}', batch_items: 9, suspect: fail}}}}\n"
            "queues: {crm: {handler: {preset: webhook}}, other: {}}"
        )
        settings = load(config)
        handler = http(settings)
        assert (handler.url, handler.batch_items, handler.suspect) == (URL, 1, "fail")
        assert http(settings, "other").batch_items == 9

    def test_the_defaults_may_name_one(self, config: Path) -> None:
        config.write_text(
            f"defaults: {{handler: {{preset: webhook, url: '{URL}'}}}}\n"
            "queues: {crm: {handler: {timeout: 5s}}}"
        )
        handler = http(load(config))
        assert (handler.preset, handler.batch_items, handler.timeout) == ("webhook", 1, 5)

    def test_another_preset_takes_nothing_from_that_of_the_defaults(
        self, config: Path, own: Path
    ) -> None:
        config.write_text(
            f"presets_dir: {own}\n"
            f"defaults: {{handler: {{preset: webhook, url: '{URL}'}}}}\n"
            f"queues: {{crm: {{handler: {{preset: ours, url: '{URL}/2'}}}}}}"
        )
        handler = http(load(config))
        assert (handler.preset, handler.batch_items, handler.encoding) == ("ours", 7, "ndjson")

    def test_an_unknown_one_is_refused_with_its_place(self, config: Path) -> None:
        config.write_text("queues:\n  crm:\n    handler:\n      preset: salesforce\n      url: x\n")
        with pytest.raises(ConfigError) as caught:
            load(config)
        (line,) = caught.value.problems
        assert line == (
            f"{config}:4: queues.crm.handler.preset: the preset 'salesforce' does not exist; "
            f"did you mean salesforce-collections? (presets: {', '.join(NAMES)})"
        )

    @pytest.mark.parametrize("name", ["", "../webhook", "/etc/passwd", "webhook.yaml", "a\0b"])
    def test_a_name_is_never_a_path(self, name: str) -> None:
        with pytest.raises(ValueError, match="does not exist"):
            find_preset(name)

    def test_other_handlers_have_none(self, config: Path) -> None:
        config.write_text("queues: {crm: {handler: {type: pull, preset: webhook}}}")
        with pytest.raises(ConfigError, match=r"handler\.preset: no such key"):
            load(config)

    def test_a_problem_is_shown_at_its_key(self, config: Path, own: Path) -> None:
        preset = {"summary": "x", "handler": {"answer": {"ok": "a["}}}
        (own / "bad.yaml").write_text(yaml.safe_dump(preset))
        config.write_text(
            f"presets_dir: {own}\nqueues:\n  crm: {{handler: {{preset: bad, url: '{URL}'}}}}"
        )
        with pytest.raises(ConfigError) as caught:
            load(config)
        (line,) = caught.value.problems
        assert line.startswith(f"{config}:3: queues.crm.handler.answer.ok: 'a[' is not valid")

    def test_origins_name_the_preset(self, config: Path) -> None:
        config.write_text(
            "queues:\n  crm:\n    handler:\n"
            f"      preset: webhook\n      url: '{URL}'\n      timeout: 5s\n"
        )
        loaded = load_with_origins(config)

        def origin(*keys: str) -> str:
            return loaded.origin(("queues", "crm", "handler", *keys))

        assert origin("batch_items") == origin("headers", "Content-Type") == "preset webhook"
        assert origin("timeout") == f"{config}:6"
        assert origin("suspect") == "default"

    def test_origins_follow_presets_and_defaults(self, config: Path) -> None:
        config.write_text(
            f"defaults: {{handler: {{type: http, url: '{URL}', timeout: 5s, suspect: fail}}}}\n"
            "queues: {crm: {handler: {preset: webhook}}}"
        )
        loaded = load_with_origins(config)
        assert loaded.origin(("queues", "crm", "handler", "timeout")) == "preset webhook"
        assert loaded.origin(("queues", "crm", "handler", "suspect")) == f"{config}:1"


class TestOwn:
    def test_a_directory_has_more(self, config: Path, own: Path) -> None:
        config.write_text(
            f"presets_dir: {own}\nqueues: {{crm: {{handler: {{preset: ours, url: '{URL}'}}}}}}"
        )
        assert http(load(config)).batch_items == 7
        assert [name for name, _ in all_presets(own)] == sorted([*NAMES, "ours"])

    def test_its_own_win(self, own: Path) -> None:
        (own / "ours.yaml").rename(own / "webhook.yaml")
        assert find_preset("webhook", own).summary == "Ours"
        assert find_preset("webhook").summary != "Ours"

    @pytest.mark.parametrize(
        "text, problem",
        [
            ("summary: [", ":1: not YAML"),
            ("- 1", "must be a valid dictionary"),
            ("summary: x", "handler: Field required"),
            ("{summary: x, handler: {}, limit: 3}", "limit: Extra inputs"),
            ("a: \0", "not YAML"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, own: Path, text: str, problem: str) -> None:
        (own / "bad.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"bad\.yaml") as caught:
            find_preset("bad", own)
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)


class TestRunTime:
    """Queues that are made while the daemon runs."""

    def catalogue(self, **settings: Any) -> Catalogue:
        kept = kept_in_memory(Definitions())
        return Catalogue(Settings.model_validate(settings), kept, lambda: 1000)

    async def test_they_may_name_a_preset(self, own: Path) -> None:
        catalogue = self.catalogue(
            presets_dir=str(own),
            defaults={"handler": {"type": "http", "url": URL, "timeout": "9s"}},
        )
        await catalogue.create("crm", {"handler": {"preset": "ours"}})
        shown = catalogue.describe("crm")["settings"]["handler"]
        assert (shown["preset"], shown["batch_items"], shown["timeout"]) == ("ours", 7, "7s")
        await catalogue.change("crm", {"handler": {"batch_items": 3}})
        shown = catalogue.describe("crm")["settings"]["handler"]
        assert (shown["preset"], shown["batch_items"]) == ("ours", 3)

    async def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(Refused, match="the preset 'wehook' does not exist"):
            await self.catalogue().create("crm", {"handler": {"preset": "wehook", "url": URL}})
