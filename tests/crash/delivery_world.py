"""A state directory that lives through many daemons with everything that delivery has in it.

WIDE has a file handler and little room in warm: what overflows goes to cold and comes back. FLAKY
fails as flaky.py says: retries, some of them much later, and dead letters. PULLED is for a
consumer. Between two lives some time may pass, as far as the daemons can tell.
"""

import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from actors.config.settings import Settings
from actors.model.books import Totals
from tests.crash import flaky, powerless, reconciled
from tests.crash.audit import Audit
from tests.crash.consumer import Consumer
from tests.crash.destinations import Destination, FileDestination, FlakyDestination
from tests.crash.found import look_into
from tests.crash.lives import Life, Zygote
from tests.crash.producer import Died, Producer
from tests.crash.seeds import seeded
from tests.eventually import at_once, eventually_sync

WIDE, FLAKY, PULLED = "wide", "flaky", "pulled"
AWAY_S: Final = 700
"""Longer than leases on rows, and than what comes much later."""
ACQUIRE_S: Final = 60
LIVES_TO_DRAIN_MAX: Final = 10
ASKS_MAX: Final = 400
AT_RANDOM: Final = "a random moment"
SHOWN: Final = {"http": {"listen": "127.0.0.1:0"}}
"""Settings of a life that shows its metrics."""


@dataclass
class Tally:
    """What all worlds went through together."""

    worlds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    delivered_again: int = 0
    dead: int = 0
    from_cold: int = 0
    """Items that were found in cold, summed over all deaths."""


class DeliveryWorld:
    def __init__(
        self, name: str, zygote: Zygote, directory: Path, tally: Tally, share_far: float = 0.05
    ) -> None:
        """`share_far` of the runs are due in more than a minute."""
        self.rng: Random = seeded(name)
        self._zygote = zygote
        self._directory = directory
        self._state = directory / "state"
        self._tally = tally
        self.clock_ahead_s = 0
        self._producer = Producer(self.rng, (WIDE, WIDE, FLAKY, PULLED), share_far=share_far)
        self._consumer = Consumer(self.rng, PULLED)
        destinations: dict[str, Destination] = {
            WIDE: FileDestination(directory / "wide.jsonl"),
            FLAKY: FlakyDestination(directory / flaky.NAME),
            PULLED: self._consumer,
        }
        self.audit = Audit(self._producer, destinations)
        self._now: Settings = Settings()
        self._life: Life | None = None

    @property
    def payloads(self) -> dict[str, bytes]:
        """Of all items that were sent."""
        return self._producer.payloads

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def live_and_die(
        self,
        plan: str,
        *,
        drains: bool,
        stops: bool = False,
        ask: dict[str, Any] | None = None,
        is_sure: bool = False,
    ) -> str:
        """Where it was killed. `drains`: WIDE delivers; if not, it fills the cold store. `stops`:
        it is told to stop. `ask`: something to ask for. `is_sure`: it comes to its point, however
        long that takes."""
        point = plan.partition(":")[0]
        if self.rng.random() < 0.6:
            self.clock_ahead_s += AWAY_S
        life = self._start(self._settings(drains=drains), plan)
        killed_at = point
        try:
            self._connect()
            self._compare_with_copy()
            for _ in range(self.rng.randrange(1, 5) if point else self.rng.randrange(3)):
                self._producer.push(self.rng.randrange(1, 25), window=self.rng.choice((1, 8, 32)))
                self._consumer.work(is_thorough=False)
            if ask is not None:
                self._producer.ask(ask)
            if stops:
                # A daemon that drains waits for those who have something leased.
                self._consumer.close()
                life.kill(signal.SIGTERM)
                self._producer.wait_for_the_end()
            elif point:
                for _ in count() if is_sure else range(ASKS_MAX):
                    self._producer.stats()
                    self._consumer.work(is_thorough=False)
        except Died:
            pass
        else:
            life.kill()
            killed_at = AT_RANDOM
        status = self._end(life, is_power_cut=point == powerless.PLAN)
        assert status != 0 or stops, life.log_text()
        if status:
            self._tally.kills[killed_at] += 1
        return killed_at if status else ""

    def fail_and_die(self) -> set[str]:
        """A life in which everything that can fail does, once, and waits when it is killed; these
        items."""
        settings = self._settings(drains=True)
        settings["queues"][FLAKY] |= {
            "warm_max_items": 100_000,
            # As late as warm takes it: nothing is tried again before the kill.
            "backoff": {"initial": "59s", "max": "59s", "jitter": 0},
        }
        life = self._start(settings, "")
        self._connect()
        self._producer.push(200, window=32)
        self._producer.settle()
        acked = self.audit.of(FLAKY, self._producer.acked)
        dies_at_once = {item for item in acked if flaky.temper_of(item) == flaky.REJECTED}
        fails = {item for item in acked if flaky.temper_of(item).failures} - dies_at_once

        def has_failed(queues: dict[str, dict[str, int]]) -> bool:
            flaky_now = queues[FLAKY]
            waiting = flaky_now["scheduled"] + flaky_now["cold"]
            return flaky_now["held"] == waiting == len(fails)

        self._wait_until(has_failed)
        # With this report, whatever was recorded is written.
        self._producer.stats()
        life.kill()
        self._end(life)
        self._tally.kills[AT_RANDOM] += 1
        return fails

    def deliver_and_die(self, plan: str) -> None:
        """A life in which WIDE overflows and delivers all it has, and that is killed then."""
        settings = self._settings(drains=True)
        settings["queues"][WIDE]["warm_max_items"] = 3
        # As long as its chunk is there, the journal knows what became of an item.
        settings["spool"]["chunk_size"] = "8Mi"
        life = self._start(settings, plan)
        self._connect()
        self._producer.push(200, window=32)
        self._producer.settle()
        self._wait_until(lambda queues: queues[WIDE]["held"] == 0)
        life.kill()
        self._end(life)
        self._tally.kills[AT_RANDOM] += 1

    def last_events(self) -> set[str]:
        assert self._life is not None
        return {event["event"] for event in self._life.events()}

    def drain(self) -> None:
        """Daemons that are told to stop, until nothing is held any more."""
        for _ in range(LIVES_TO_DRAIN_MAX):
            self.clock_ahead_s += AWAY_S
            life = self._start(self._settings(drains=True) | SHOWN, "")
            self._connect()
            self._producer.settle()
            parked = self._will_be_parked()
            self._wait_until(partial(holds, parked))
            reconciled.check(self._state, self._producer.stats())
            life.kill(signal.SIGTERM)
            assert self._end(life) == 0, life.log_text()
            assert len(self.audit.found.live) == parked
            if not parked:
                break
        self.audit.at_the_end()
        self._check_the_dead()

    def sum_up(self) -> None:
        tally, audit = self._tally, self.audit
        tally.worlds += 1
        tally.delivered += len(audit.delivered)
        tally.delivered_again += audit.delivered_again
        tally.dead += len(audit.found.dead)

    def has_in_cold(self, queue: str) -> bool:
        return bool(self.audit.of(queue, self.audit.found.in_cold))

    def _check_the_dead(self) -> None:
        """Those that had to die are dead, or were removed; and they died when they had to."""
        audit = self.audit
        acked = audit.of(FLAKY, self._producer.acked)
        must_die = {item for item in acked if flaky.temper_of(item).dies}
        deleted = must_die & audit.may_be_deleted - audit.found.dead.keys()
        assert audit.found.dead.keys() == must_die - deleted
        assert audit.found.books.get(FLAKY, Totals()).deleted == len(deleted)
        for item, there in audit.found.dead.items():
            assert there.attempt == flaky.temper_of(item).failures
        assert audit.delivered.keys() == self._producer.acked - must_die

    def _will_be_parked(self) -> int:
        """How many items will come much later when all else is delivered."""
        audit, producer = self.audit, self._producer
        found = audit.found
        waiting = {item: there.attempt for item, there in found.live.items()}
        known = waiting.keys() | audit.delivered.keys() | found.dead.keys() | audit.may_be_deleted
        waiting |= dict.fromkeys((producer.sent_now & producer.acked) - known, 0)
        parked = 0
        for item in audit.of(FLAKY, waiting):
            temper, attempt = flaky.temper_of(item), waiting[item]
            dies_now = temper.dies and attempt + 1 >= temper.failures
            parked += temper.later and attempt < temper.failures and not dies_now
        return parked

    def _wait_until(self, is_so: Callable[[dict[str, dict[str, int]]], bool]) -> None:
        def check() -> None:
            with at_once():
                self._consumer.work(is_thorough=True)
                queues = self._producer.stats()["queues"]
            assert is_so(queues), queues

        eventually_sync(check)

    def _connect(self) -> None:
        self._producer.connect(self._directory / "socket", self.clock_ahead_s)
        self._consumer.connect(self._directory / "socket", self.audit.found)

    def _start(self, settings: dict[str, Any], plan: str) -> Life:
        self._now = Settings.model_validate(settings)
        log = self._directory / "daemon.log"
        self._life = self._zygote.start(settings, plan, log, self.clock_ahead_s)
        return self._life

    def _end(self, life: Life, *, is_power_cut: bool = False) -> int:
        status = life.wait()
        self.close()
        assert status in (0, -signal.SIGKILL), life.log_text()
        remains = powerless.remains_of(self._state)
        if remains.exists():
            shutil.rmtree(self._state)
            remains.rename(self._state)
        found = look_into(self._state, self._now.spool, self._directory / "copy")
        in_hand_max = {name: queue.warm_max_items for name, queue in self._now.queues.items()}
        self.audit.loses_power |= is_power_cut
        self.audit.after_death(found, None if is_power_cut else in_hand_max)
        self._tally.from_cold += len(found.in_cold)
        return status

    def _compare_with_copy(self) -> None:
        """What the daemon recovered is what the copy of its state gave."""
        report = self._producer.stats()
        ends = ("delivered", "dead", "dropped", "deleted", "lost", "held")
        parts = ("spooled", "scheduled", "warm", "cold", "running")
        for queue, totals in self.audit.found.books.items():
            entry = report["queues"][queue]
            assert entry["accepted"] == totals.accepted
            assert entry["delivered"] >= totals.delivered
            assert entry["dead"] >= totals.dead
            assert entry["accepted"] == sum(entry[end] for end in ends)
            assert entry["held"] == sum(entry[part] for part in parts)
            assert min(entry.values()) >= 0

    def _settings(self, *, drains: bool) -> dict[str, Any]:
        rng = self.rng
        wide = {"type": "file", "path": str(self._directory / "wide.jsonl")}
        return {
            "socket": {"path": str(self._directory / "socket"), "max_run_bytes": "16Ki"},
            "state_dir": str(self._state),
            "spool": {
                "chunk_size": rng.choice(("64Ki", "128Ki")),
                "max_bytes": "64Mi",
                "min_free_bytes": "0",
                "ballast_bytes": "64Ki",
                "meta_sync_interval": "10ms",
                "inmemory_runs": rng.choice((2, 16)),
                "spare_chunks": 1,
            },
            "cold": {"acquire_timeout": f"{ACQUIRE_S}s"},
            "queues": {
                WIDE: {
                    "handler": wide,
                    "is_active": drains,
                    "warm_max_items": rng.choice((3, 10, 40)),
                },
                FLAKY: flaky.SETTINGS | {"warm_max_items": rng.choice((5, 20, 1000))},
                PULLED: {"warm_max_items": rng.choice((5, 40)), "max_retries": 1000},
            },
            "log": {"format": "json"},
            "drain_timeout": "60s",
        }


def holds(items: int, queues: dict[str, dict[str, int]]) -> bool:
    return sum(entry["held"] for entry in queues.values()) == items
