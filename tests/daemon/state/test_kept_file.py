"""Files of definitions: what earlier versions wrote, what is damaged, and who may read them."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.config.catalogue import Definition, Definitions
from actors.config.schedules import Installed, KeptSchedules
from actors.config.triggers import Hold, KeptTriggers
from daemon.errors import CannotStart
from daemon.state.kept_file import KeptFile

QUEUES: dict[str, Any] = {
    "version": 1,
    "queues": {
        "crm": {
            "created_ms": 1755000000000,
            "updated_ms": 1755000000001,
            "keys": {"max_retries": 3, "handler": {"type": "null"}},
            "fingerprint": "",
        },
        "file": {"created_ms": 1, "updated_ms": 2, "keys": None, "fingerprint": "0123456789abcdef"},
    },
    "paused": [["crm", "nightly"], ["crm", None], ["file", ""]],
    "deleted": {"old": 7},
}
SCHEDULES: dict[str, Any] = {
    "version": 1,
    "schedules": {"nightly": {"queue": "jobs", "cron": "@daily", "payload": {"a": [1, "ü", None]}}},
    "installed": {"nightly": ["0123456789ab", True], "gone": ["ba9876543210", False]},
}
TRIGGERS: dict[str, Any] = {
    "version": 1,
    "triggers": {"embed": {"type": "QUEUE", "queue": "documents", "target": "jobs"}},
    "held": [["a", "b"], ["documents", "embed"]],
}
QUEUES_READ = Definitions(
    {
        "crm": Definition(
            1755000000000, 1755000000001, {"max_retries": 3, "handler": {"type": "null"}}
        ),
        "file": Definition(1, 2, None, "0123456789abcdef"),
    },
    frozenset({("crm", None), ("crm", "nightly"), ("file", "")}),
    {"old": 7},
)
SCHEDULES_READ = KeptSchedules(
    SCHEDULES["schedules"],
    {"nightly": Installed("0123456789ab", True), "gone": Installed("ba9876543210", False)},
)
TRIGGERS_READ = KeptTriggers(
    TRIGGERS["triggers"], frozenset({Hold("a", "b"), Hold("documents", "embed")})
)


@pytest.mark.parametrize(
    "content,read",
    [(QUEUES, QUEUES_READ), (SCHEDULES, SCHEDULES_READ), (TRIGGERS, TRIGGERS_READ)],
    ids=["queues", "schedules", "triggers"],
)
async def test_files_of_earlier_versions_are_read_and_written_in_the_same_form(
    tmp_path: Path, content: dict[str, Any], read: Definitions | KeptSchedules | KeptTriggers
) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(content, indent=1))
    file = KeptFile(path, type(read)())
    with structlog.testing.capture_logs() as logged:
        assert file.load() == read
    assert not logged
    await file.save(read)
    assert json.loads(path.read_text()) == content


def test_deletions_may_be_missing(tmp_path: Path) -> None:
    """The first versions did not write them."""
    path = tmp_path / "queues.json"
    path.write_text(json.dumps({name: QUEUES[name] for name in ("version", "queues", "paused")}))
    assert KeptFile(path, Definitions()).load().queues == QUEUES_READ.queues


async def test_only_their_owner_may_read_them(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    file = KeptFile(path, Definitions())
    await file.save(QUEUES_READ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    file.load()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(QUEUES))
    (tmp_path / "kept.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotStart, match=r"kept\.json cannot be read"):
        KeptFile(tmp_path / "kept.json", Definitions()).load()


def test_each_entry_that_cannot_be_read_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    path = tmp_path / "triggers.json"
    held = [["a"], ["a b", "c"], *TRIGGERS["held"], 7, ["q", None]]
    path.write_text(json.dumps({**TRIGGERS, "held": held, "of_a_later_version": {}}))
    file = KeptFile(path, KeptTriggers())
    for _ in range(2):
        with structlog.testing.capture_logs() as logged:
            assert file.load() == TRIGGERS_READ
        (line,) = logged
        assert line["event"] == "state.entries_rejected"
        wrong = {entry.partition(":")[0] for entry in line["entries"]}
        assert wrong == {"held.0", "held.1", "held.4", "held.5", "of_a_later_version"}
    (aside,) = tmp_path.glob("triggers.json.rejected-*")
    assert aside.read_text() == path.read_text()
