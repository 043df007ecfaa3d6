"""Damage to the cold store: the daemon starts, delivers what can be read, and hides nothing.

Every case is a state directory with rows, retries and dead letters, and cold.sqlite in it damaged.
A daemon that meets the damage may end, with a word about it; the next one starts. What is not
delivered then was logged as an error, and is held in the books or kept in the quarantine.
"""

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash import flaky
from tests.crash.damage import DAMAGES, part_of
from tests.crash.delivery_world import AWAY_S, FLAKY, WIDE, DeliveryWorld, Tally
from tests.crash.destinations import Lines
from tests.crash.found import COLD, Found
from tests.crash.lives import Life, Zygote
from tests.crash.producer import Died, Producer
from tests.crash.seeds import EFFORT, seeded
from tests.eventually import at_once, eventually_sync

LIVES_MAX: Final = 4
POLLS_IDLE: Final = 60
"""So many reports without a change: nothing more happens."""
PAGES: Final = 8192
ERRORS: Final = frozenset(
    {
        "cold.set_aside",
        "cold.row_corrupt",
        "cold.items_missing",
        "cold.items_lost",
        "cold.away",
        "cold.reindexed",
    }
)


@dataclass(frozen=True)
class Template:
    state: Path
    found: Found
    payloads: dict[str, bytes]
    clock_ahead_s: int


@pytest.fixture(scope="module")
def template(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Filled by a few daemons, and closed as it should be: one file."""
    directory = tmp_path_factory.mktemp("cold")
    with closing(DeliveryWorld("cold corruption", zygote, directory, Tally())) as world:
        while len(world.audit.found.in_cold) < 300 or len(world.audit.found.dead) < 10:
            world.live_and_die("", drains=False)
        world.live_and_die("", drains=False, stops=True)
        assert not (directory / "state" / f"{COLD}-wal").exists()
        return Template(directory / "state", world.audit.found, world.payloads, world.clock_ahead_s)


class Case:
    def __init__(self, template: Template, zygote: Zygote, directory: Path) -> None:
        self.template = template
        self.state = directory / "state"
        self.database = self.state / COLD
        self._zygote = zygote
        self._directory = directory
        self._producer = Producer(seeded("cold corruption", "case"), (WIDE,))
        self.lives: list[Life] = []
        self.report: dict[str, Any] = {}
        shutil.copytree(template.state, self.state, ignore=shutil.ignore_patterns("*.ballast"))

    def live(self, *, is_whole: bool = False) -> None:
        """Daemons until one has done all it could and ends when it is told to. `is_whole`: that is
        to deliver everything."""
        for _ in range(LIVES_MAX):
            life = self._start()
            try:
                self._producer.connect(self._directory / "socket")
                self._producer.push(3, window=8)
                self._producer.settle()
                if is_whole:
                    self._wait_until_drained()
                else:
                    self._wait_until_idle()
                life.kill(signal.SIGTERM)
                status = life.wait()
            except Died:
                status = life.wait()
            finally:
                self._producer.close()
            if status == 0:
                return
            assert status == 1, life.log_text()
            assert "StoreCorrupt" in life.log_text() or "CannotStart" in life.log_text()
        raise AssertionError(f"no daemon lives with it: {self.lives[-1].log_text()}")

    def check(self) -> None:
        """What was delivered is what was sent; and what is missing is known to be."""
        known = self.template.payloads | self._producer.payloads
        delivered = set()
        for name in ("wide.jsonl", flaky.NAME):
            for line in Lines(self._directory / name).new():
                assert known[line["id"]] == line["payload"].encode()
                if line.get("good", True):
                    delivered.add(line["id"])
        found = self.template.found
        due = {item for item, there in found.live.items() if there.queue == WIDE}
        missing = (due | self._producer.acked) - delivered
        entry = self.report["queues"][WIDE]
        print(f"{len(missing)} of {len(due)} missing; {self.events() & ERRORS}; {entry}")
        last = self._producer.sent_now & self._producer.acked
        assert last
        assert not missing & last, "what was pushed when all was well again is lost"
        if missing:
            assert self.events() & ERRORS or "StoreCorrupt" in self.log_text()
            assert entry["held"] + entry["lost"] >= len(missing), "what is missing is in no book"

    def events(self) -> set[str]:
        return {event["event"] for life in self.lives for event in life.events()}

    def log_text(self) -> str:
        return "".join(life.log_text() for life in self.lives)

    def _start(self) -> Life:
        settings = {
            "socket": {"path": str(self._directory / "socket")},
            "state_dir": str(self.state),
            "spool": {"min_free_bytes": "0", "ballast_bytes": "64Ki", "chunk_size": "8Mi"},
            "queues": {
                WIDE: {
                    "handler": {"type": "file", "path": str(self._directory / "wide.jsonl")},
                    "warm_max_items": 50,
                },
                FLAKY: flaky.SETTINGS,
            },
            "log": {"format": "json"},
        }
        ahead_s = self.template.clock_ahead_s + AWAY_S * (len(self.lives) + 1)
        life = self._zygote.start(settings, "", self._directory / "daemon.log", ahead_s)
        self.lives.append(life)
        return life

    def _wait_until_idle(self) -> None:
        """What was pushed now is delivered, and nothing more happens."""
        eventually_sync(self._check_last_delivered)
        idle = 0
        before: dict[str, Any] = {}
        while idle < POLLS_IDLE:
            self.report = self._producer.stats()
            idle = idle + 1 if self.report["queues"] == before else 0
            before = self.report["queues"]

    def _check_last_delivered(self) -> None:
        with at_once():
            self._producer.stats()
        lines = Lines(self._directory / "wide.jsonl").new()
        missing = self._producer.sent_now - {line["id"] for line in lines}
        assert not missing, missing

    def _wait_until_drained(self) -> None:
        def check() -> None:
            with at_once():
                self.report = self._producer.stats()
            assert self.report["queues"][WIDE]["held"] == 0, self.report

        eventually_sync(check)


@pytest.fixture
def case(template: Template, zygote: Zygote, tmp_path: Path) -> Iterator[Case]:
    case = Case(template, zygote, tmp_path)
    yield case
    for life in case.lives:
        life.end()


def test_undamaged_store_delivers_all(case: Case) -> None:
    case.live(is_whole=True)
    case.check()
    assert not case.events() & ERRORS


@pytest.mark.parametrize("what", ["is garbage", "has no head", "is cut", "is empty", "is gone"])
def test_database_that_cannot_be_used_is_set_aside(what: str, case: Case) -> None:
    data = case.database.read_bytes()
    garbage = seeded("garbage", what).randbytes(len(data))
    match what:
        case "is garbage":
            left = garbage
        case "has no head":
            left = garbage[:PAGES] + data[PAGES:]
        case "is cut":
            left = data[: len(data) // 2]
        case _:
            left = b""
    case.database.write_bytes(left)
    if what == "is gone":
        case.database.unlink()
    case.live()
    case.check()
    entry = case.report["queues"][WIDE]
    if left:
        assert "cold.items_lost" in case.events()
        assert (entry["held"], bool(entry["lost"])) == (0, True)
        (kept,) = (case.state / "quarantine").glob(f"{COLD}-*/{COLD}")
        assert kept.read_bytes()[PAGES:] == left[PAGES:] or kept.read_bytes() == left
        assert "cold.set_aside" in case.events()
    else:
        assert "cold.items_missing" in case.events()
        assert (bool(entry["held"]), entry["lost"]) == (True, 0)


@pytest.mark.parametrize("number", range(8 * EFFORT))
def test_damage_is_never_hidden(number: int, case: Case) -> None:
    rng = seeded("cold damage", number)
    how = rng.choice(sorted(DAMAGES))
    data = case.database.read_bytes()
    start, end = part_of(len(data), rng)
    print(f"{how} {start} to {end} of {len(data)} bytes")
    case.database.write_bytes(DAMAGES[how](data, start, end, rng))
    case.live()
    case.check()
