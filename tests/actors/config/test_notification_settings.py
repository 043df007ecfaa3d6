"""What a `notifications:` section may say, and what is said about one that cannot be used."""

from pathlib import Path

import pytest

from actors.config.observers import NotificationSettings
from actors.model.masking import MASK, masked
from daemon.config.load import load
from daemon.errors import ConfigError


def read(directory: Path, text: str) -> dict[str, NotificationSettings]:
    file = directory / "forebay.yaml"
    file.write_text(text)
    return load(file).notifications


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
notifications:
  pager:
    on: [dead]
    queues: [crm-*, mail]
    webhook: {url: "https://chat.example/hooks/T0/secret", headers: {X-Team: crm}, timeout: 2s}
    queue: ops
    group_by: [queue]
    window: 5m
    rate: 1
  everything: {queue: ops}
""",
    )
    pager, everything = found["pager"], found["everything"]
    assert (pager.on, pager.group_by, pager.window, pager.rate) == (("dead",), ("queue",), 300, 1)
    assert pager.webhook is not None
    assert pager.webhook.timeout == 2
    assert everything.on == ("dead", "trigger_failed")
    assert (everything.group_by, everything.window, everything.rate) == (
        ("queue", "error_type"), 60, 6,
    )  # fmt: skip
    assert pager.wants("dead", "crm-eu")
    assert not pager.wants("dead", "billing")
    assert not pager.wants("trigger_failed", None)
    assert everything.wants("trigger_failed", None)


@pytest.mark.parametrize(
    "keys, problem",
    [
        ("{}", "notifications.pager: needs a webhook, a queue, or both"),
        ("{on: [alive], queue: ops}", "must be 'dead' or 'trigger_failed', not \"alive\""),
        ("{on: [], queue: ops}", "notifications.pager.on"),
        ("{queue: 'a b'}", "notifications.pager.queue"),
        ("{queue: ops, window: 1ms}", "notifications.pager.window: 1ms is outside 1s..1d"),
        ("{queue: ops, rate: 0}", "notifications.pager.rate: 0 is outside 1..1000"),
        ("{queue: ops, group_by: [colour]}", "must be 'queue' or 'error_type'"),
        (
            "{webhook: {url: 'ftp://x'}}",
            "notifications.pager.webhook.url: 'ftp://x' is not a valid URL",
        ),
        ("{webhook: {url: 'ftp://me:hush@x/T0?s=1'}}", "url: 'ftp://***@x/…' is not a valid URL"),
        ("{webhook: {url: 'http://x:0/T0/hush?s=1'}}", "url: 'http://x:0/…' is not a valid URL"),
        ("{webhook: {url: 'http://x/hush hush'}}", "url: 'http://x/…': contains characters"),
        ("{webhook: {url: 'http://u:pw@x'}}", "a URL here has no user, password"),
        (
            "{webhook: {url: 'http://x', headers: {Host: y}}}",
            "notifications.pager.webhook.headers: Host is set by forebay",
        ),
        ("{webhook: {url: 'http://x', colour: red}}", "no such key"),
        ("{queeu: ops}", "no such key"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, keys: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"notifications:\n  pager: {keys}\n")
    lines = caught.value.problems
    assert any(problem in line for line in lines), lines
    assert all(line.startswith(f"{tmp_path}/forebay.yaml:") for line in lines), lines


def test_the_queue_must_be_one(tmp_path: Path) -> None:
    text = "auto_create_queues: false\nnotifications: {pager: {queue: ops}}\n"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    (line,) = caught.value.problems
    assert "notifications.pager.queue: there is no queue 'ops'" in line
    assert read(tmp_path, text + "queues: {ops: {}}\n")["pager"].queue == "ops"


def test_names_are_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a valid name"):
        read(tmp_path, "notifications: {'a b': {queue: ops}}\n")


def test_a_webhook_is_shown_without_its_path_and_its_secrets() -> None:
    webhook = {"url": "https://chat.example/hooks/T0/B1", "headers": {"Authorization": "x"}}
    shown = masked({"notifications": {"pager": {"webhook": webhook, "queue": "ops"}}})
    assert shown == {
        "notifications": {
            "pager": {
                "webhook": {
                    "url": f"https://chat.example/{MASK}",
                    "headers": {"Authorization": MASK},
                },
                "queue": "ops",
            }
        }
    }
