"""Queues that are made, changed and deleted while the daemon runs, and kept across its lives."""

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from actors.config import catalogue as catalogue_module
from actors.config.book import Kept
from actors.config.catalogue import Catalogue, Definitions, QueueCounts
from actors.config.settings import Settings
from daemon.state.kept_file import QUEUES, KeptFile
from forebay.errors import Refused


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def opened(directory: Path, clock: Clock, **settings: Any) -> Catalogue:
    kept = KeptFile(directory / QUEUES, Definitions()).open()
    catalogue = Catalogue(Settings.model_validate(settings), kept, clock)
    await catalogue.stamp()
    return catalogue


def kept_aside(directory: Path) -> list[Path]:
    return [*directory.glob(f"{QUEUES}.damaged-*"), *directory.glob(f"{QUEUES}.rejected-*")]


class TestQueues:
    async def test_one_is_created_changed_and_deleted(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock)
        await catalogue.create("q", {"max_retries": 3, "backoff": {"initial": "1s"}})
        clock.now_ms = 2000
        await catalogue.change("q", {"backoff": {"max": "2s"}})
        made = catalogue.describe("q")
        assert (made["origin"], made["created_ms"], made["updated_ms"]) == ("control", 1000, 2000)
        settings = catalogue.queue("q")
        assert settings is not None
        # Key by key: what was said before stays said.
        assert (settings.max_retries, settings.backoff.initial, settings.backoff.max) == (3, 1, 2)
        await catalogue.delete("q")
        assert catalogue.describe("q")["origin"] == "push"
        assert catalogue.settings_of("q") == Settings().defaults

    async def test_they_are_kept(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock, queues={"file": {}})
        await catalogue.create("q", {"max_retries": 3, "handler": {"type": "null"}})
        await catalogue.pause("q")
        await catalogue.pause("file", "flow")
        before = [catalogue.describe(name) for name in ("q", "file")]
        clock.now_ms = 5000
        again = await opened(tmp_path, clock, queues={"file": {}})
        assert [again.describe(name) for name in ("q", "file")] == before
        assert again.is_paused("q")
        assert again.paused_flows("file") == {"flow"}
        await again.resume("q")
        await again.resume("file", "flow")
        await again.delete("q")
        last = await opened(tmp_path, clock, queues={"file": {}})
        assert not last.is_paused("q")
        assert last.paused_flows("file") == frozenset()
        assert last.names() == ["file"]

    async def test_they_start_from_the_defaults_of_the_day(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        catalogue = await opened(tmp_path, clock, defaults={"max_retries": 1})
        await catalogue.create("q", {"full_timeout": "1s"})
        again = await opened(tmp_path, clock, defaults={"max_retries": 2})
        assert again.settings_of("q").max_retries == 2
        assert again.settings_of("q").full_timeout == 1

    async def test_another_handler_takes_none_of_the_keys_of_the_first(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        catalogue = await opened(tmp_path, clock)
        await catalogue.create("q", {"handler": {"type": "http", "url": "http://host/"}})
        await catalogue.change("q", {"handler": {"type": "null"}})
        assert catalogue.settings_of("q").handler.type == "null"

    @pytest.mark.parametrize(
        "handler",
        [
            {"type": "command", "command": ["/bin/sh", "-c", "true"]},
            {"type": "python", "function": "json:dumps"},
            {"type": "file", "path": "/tmp/{queue}"},
        ],
        ids=lambda handler: handler["type"],
    )
    async def test_programs_and_files_are_for_the_configuration_alone(
        self, tmp_path: Path, clock: Clock, handler: dict[str, Any]
    ) -> None:
        """Whoever may push may define queues."""
        catalogue = await opened(tmp_path, clock)
        with pytest.raises(Refused, match="only be given in the configuration"):
            await catalogue.create("q", {"handler": handler})
        await catalogue.create("q", {})
        with pytest.raises(Refused, match="only be given in the configuration"):
            await catalogue.change("q", {"handler": handler})
        assert catalogue.settings_of("q").handler.type == "pull"

    async def test_pauses_at_the_same_time_are_all_kept(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock)
        async with trio.open_nursery() as nursery:
            for queue in "abc":
                nursery.start_soon(catalogue.pause, queue)
        assert all(catalogue.is_paused(queue) for queue in "abc")

    async def test_nothing_changes_if_it_cannot_be_kept(self, tmp_path: Path, clock: Clock) -> None:
        async def fail(_: Definitions) -> None:
            raise OSError("no room")

        catalogue = Catalogue(Settings(), Kept(Definitions(), fail), clock)
        for change in (catalogue.create("q", {}), catalogue.pause("q")):
            with pytest.raises(OSError, match="no room"):
                await change
        assert catalogue.names() == []
        assert not catalogue.is_paused("q")


class TestRefusals:
    @pytest.mark.parametrize(
        "keys,text",
        [
            ({"max_retrys": 1}, "q: max_retrys: Extra inputs are not permitted"),
            ({"max_retries": -1}, "q: max_retries: "),
            ({"max_retries": "many"}, "q: max_retries: "),
            ({"backoff": {"initial": "1h"}}, "initial (1h) must not be longer than max (5m)"),
            ({"unique": "perhaps"}, "q: unique: "),
            ({"handler": {"type": "carrier pigeon"}}, "q: handler: "),
            ({"handler": {"type": "http", "url": "x"}}, "is not a valid URL"),
            ({"warm_max_bytes": 1}, "q: warm_max_bytes: "),
        ],
    )
    async def test_settings_that_make_no_sense(
        self, tmp_path: Path, clock: Clock, keys: dict[str, Any], text: str
    ) -> None:
        catalogue = await opened(tmp_path, clock)
        with pytest.raises(Refused) as refused:
            await catalogue.create("q", keys)
        assert refused.value.code == "BAD_REQUEST"
        assert text in refused.value.text
        assert "\n" not in refused.value.text
        await catalogue.create("q", {})
        with pytest.raises(Refused, match="q: ") as refused:
            await catalogue.change("q", keys)
        assert catalogue.settings_of("q") == Settings().defaults

    @pytest.mark.parametrize("name", ["", "a b", "x" * 300, "../q", "q\n"])
    async def test_names_that_are_none(self, tmp_path: Path, clock: Clock, name: str) -> None:
        catalogue = await opened(tmp_path, clock)
        for change in (catalogue.create(name, {}), catalogue.pause(name)):
            with pytest.raises(Refused) as refused:
                await change
            assert refused.value.code == "BAD_REQUEST"

    async def test_the_configuration_has_the_last_word(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock)
        await catalogue.create("q", {"max_retries": 3})
        taken_over = await opened(tmp_path, clock, queues={"q": {"max_retries": 7}})
        assert taken_over.settings_of("q").max_retries == 7
        assert taken_over.describe("q")["origin"] == "file"
        for change in (taken_over.change("q", {"max_retries": 1}), taken_over.delete("q")):
            with pytest.raises(Refused, match="defined in the configuration: change it there"):
                await change
        with pytest.raises(Refused, match="there is a queue q already"):
            await taken_over.create("q", {})
        # When the configuration no longer defines it, what was said at run time counts again.
        again = await opened(tmp_path, clock)
        assert again.settings_of("q").max_retries == 3

    async def test_what_is_not_there_is_not_changed(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock, auto_create_queues=False)
        with pytest.raises(Refused) as refused:
            await catalogue.change("q", {})
        assert refused.value.code == "NOT_FOUND"

    async def test_a_queue_is_created_once(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock)
        await catalogue.create("q", {})
        with pytest.raises(Refused, match="there is a queue q already"):
            await catalogue.create("q", {"max_retries": 1})
        assert catalogue.settings_of("q").max_retries == 8


class TestLimits:
    async def test_pauses_are_limited_and_can_be_ended(
        self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        catalogue = await opened(tmp_path, clock)
        monkeypatch.setattr(catalogue_module, "PAUSES_MAX", 2)
        await catalogue.pause("q", "a")
        await catalogue.pause("q", "b")
        with pytest.raises(Refused, match="2 queues and flows are paused already"):
            await catalogue.pause("q", "c")
        assert not await catalogue.pause("q", "a")
        assert await catalogue.resume("q", "a")
        assert await catalogue.pause("q", "c")
        assert catalogue.paused_flows("q") == {"b", "c"}

    async def test_only_deleted_queues_that_had_items_are_remembered(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        catalogue = await opened(tmp_path, clock)
        for name, accepted in (("had", 7), ("never", 0)):
            await catalogue.create(name, {})
            await catalogue.delete(name, accepted)
        assert KeptFile(tmp_path / QUEUES, Definitions()).load().deleted == {"had": 7}
        assert not catalogue.exists("had", QueueCounts(7, 0, 0))
        assert catalogue.exists("had", QueueCounts(8, 0, 0))


class TestStamps:
    async def test_a_configured_queue_knows_since_when(self, tmp_path: Path, clock: Clock) -> None:
        await opened(tmp_path, clock, queues={"q": {}})
        clock.now_ms = 2000
        same = await opened(tmp_path, clock, queues={"q": {}})
        assert same.describe("q")["updated_ms"] == 1000
        other = await opened(tmp_path, clock, queues={"q": {"max_retries": 1}})
        made = other.describe("q")
        assert (made["created_ms"], made["updated_ms"]) == (1000, 2000)

    async def test_a_reload_is_a_change(self, tmp_path: Path, clock: Clock) -> None:
        catalogue = await opened(tmp_path, clock, queues={"q": {}})
        seen = catalogue.changes
        clock.now_ms = 2000
        await catalogue.reload(Settings.model_validate({"queues": {"q": {"max_retries": 1}}}))
        assert await catalogue.wait_changed(seen) > seen
        assert catalogue.describe("q")["updated_ms"] == 2000
        assert catalogue.settings_of("q").max_retries == 1


class TestFile:
    async def test_a_damaged_one_is_kept_aside(self, tmp_path: Path, clock: Clock) -> None:
        (tmp_path / QUEUES).write_text('{"version": 1, "queues": {"q"')
        catalogue = await opened(tmp_path, clock)
        assert catalogue.names() == []
        (aside,) = kept_aside(tmp_path)
        assert aside.read_text() == '{"version": 1, "queues": {"q"'
        await catalogue.create("q", {})
        assert (await opened(tmp_path, clock)).names() == ["q"]

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "null",
            "[]",
            "7",
            '{"version": 2, "queues": {}, "paused": []}',
            '{"version": 1, "queues": [], "paused": []}',
            '{"version": 1, "queues": {"q": 3}, "paused": []}',
            '{"version": 1, "queues": {"q": {"created_ms": 1}}, "paused": []}',
            '{"version": 1, "queues": {}, "paused": [["q"]]}',
            '{"version": 1, "queues": {}, "paused": 3}',
            '{"version": 1, "queues": {}, "paused": [[["q"], null]]}',
            '{"version": 1, "queues": {"q": {"created_ms": 1, "updated_ms": 1, "keys": 3,'
            ' "fingerprint": ""}}, "paused": []}',
            b"\xff\xfe\x00",
        ],
    )
    async def test_whatever_is_in_it_the_daemon_starts(
        self, tmp_path: Path, clock: Clock, content: str | bytes
    ) -> None:
        written = content if isinstance(content, bytes) else content.encode()
        (tmp_path / QUEUES).write_bytes(written)
        catalogue = await opened(tmp_path, clock)
        assert catalogue.names() == []
        (aside,) = kept_aside(tmp_path)
        assert aside.read_bytes() == written

    async def test_an_entry_that_cannot_be_read_is_set_aside_alone(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        catalogue = await opened(tmp_path, clock)
        await catalogue.create("good", {"max_retries": 3})
        await catalogue.pause("good")
        content = json.loads((tmp_path / QUEUES).read_text())
        content["queues"] |= {"bad": 3, "no name!": content["queues"]["good"]}
        content["paused"] += [["q"], [5, None], ["q", 5]]
        (tmp_path / QUEUES).write_text(json.dumps(content))
        with structlog.testing.capture_logs() as logged:
            again = await opened(tmp_path, clock)
        assert again.names() == ["good"]
        assert again.settings_of("good").max_retries == 3
        assert again.is_paused("good")
        (line,) = [line for line in logged if line["event"] == "state.entries_rejected"]
        assert len(line["entries"]) == 5
        await again.resume("good")
        (aside,) = kept_aside(tmp_path)
        assert line["kept"] == str(aside)
        assert json.loads(aside.read_text()) == content

    async def test_a_definition_that_no_longer_makes_sense_hurts_nobody_else(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        catalogue = await opened(tmp_path, clock)
        await catalogue.create("good", {"max_retries": 3})
        await catalogue.create("bad", {})
        content = json.loads((tmp_path / QUEUES).read_text())
        content["queues"]["bad"]["keys"] = {"of_another_version": 1}
        (tmp_path / QUEUES).write_text(json.dumps(content))
        again = await opened(tmp_path, clock)
        assert again.settings_of("good").max_retries == 3
        assert again.settings_of("bad") == Settings().defaults
        # It is not forgotten: a version that knows it finds it again.
        await again.pause("good")
        kept = KeptFile(tmp_path / QUEUES, Definitions()).load()
        assert kept.queues["bad"].keys == {"of_another_version": 1}
