"""SIGKILL and power loss while writes are staged, sealed, published and aborted.

A spool lives through many daemons. After every death a copy of it is recovered and read: of each
write either all items of the published stages are visible, or none; what was acknowledged is there;
what was answered is so, and what was not is one or the other. The next daemon is asked again what
was not answered. At the end everything is drained: what came out are exactly the items of the
published writes, and every receipt says so.
"""

import shutil
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from actors.config.settings import Settings
from actors.model.books import NO_STAGE, parse_account
from actors.spooler.writes import Phase, Writes
from daemon.journal.journal import Journal
from tests.crash import powerless
from tests.crash.destinations import Lines
from tests.crash.killing_files import RECORD_POINTS
from tests.crash.lives import Life, Zygote
from tests.crash.named_files import QuickFiles
from tests.crash.producer import Died
from tests.crash.seeds import EFFORT, seeded
from tests.crash.staging_driver import ABORTED, APP, OPEN, PUBLISHED, Job, Part, StagingDriver
from tests.eventually import at_once, eventually_sync

SPOOLS: Final = EFFORT
STEPS_MAX: Final = 40
OTHER_POINTS: Final = (
    "mid_block_write",
    "after_block_write",
    "after_block_sync",
    "mid_index_write",
    "after_checkpoint_rename",
    "before_recycle_rename",
    "after_mark_sync",
    "at_recovery_end",
    "before_recovery_index_rename",
)
AT_START: Final = ("mid_record_write", "before_record_rename", "after_record_rename")
"""Of the record points: reached when a daemon writes the log anew."""
RANDOM_MOMENTS: Final = 6
CUTS: Final = 14
TRIES_MAX: Final = 20
OUT, HOLD = "out", "hold"


@pytest.mark.parametrize("spool", range(SPOOLS))
def test_writes_are_whole_or_not_there_after_every_kill(
    spool: int, zygote: Zygote, tmp_path: Path
) -> None:
    with closing(World(f"staging kills {spool}", zygote, tmp_path)) as world:
        world.live_and_die("")
        for death in world.plan_deaths():
            world.live_and_die(death)
        for _ in range(TRIES_MAX):
            # Chance decides whether it is a publication that meets its point.
            if not world.found[PUBLISHED, OPEN]:
                world.live_and_die(f"after_record_sync:{world.rng.randrange(2, 12)}")
        world.drain()
        print(world.summary())
        assert not [point for point in RECORD_POINTS if not world.deaths[point]]
        assert world.found[PUBLISHED, OPEN], "no publication was found done that was not answered"


@pytest.mark.parametrize("spool", range(SPOOLS))
def test_writes_are_whole_or_not_there_after_power_loss(
    spool: int, zygote: Zygote, tmp_path: Path
) -> None:
    with closing(World(f"staging power {spool}", zygote, tmp_path)) as world:
        for cut in range(CUTS):
            steps = world.rng.randrange(1, world.rng.choice((30, 150, 500)))
            world.live_and_die(f"{powerless.PLAN}:{steps}:{cut}")
        world.drain()
        print(world.summary())
        assert world.deaths[powerless.PLAN] >= CUTS // 2


class World:
    def __init__(self, name: str, zygote: Zygote, directory: Path) -> None:
        self.rng = seeded(name)
        self._zygote = zygote
        self._directory = directory
        self._state = directory / "state"
        self._driver = StagingDriver(self.rng, (OUT, OUT, HOLD))
        self._lines = Lines(directory / "out.jsonl")
        self._came: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.found: Counter[tuple[str, str]] = Counter()
        """What a write was found to be after a death, and what was known of it."""

    def close(self) -> None:
        self._driver.close()

    def summary(self) -> str:
        states = Counter(job.state for job in self._driver.jobs)
        return f"{self.deaths.total()} deaths, writes {dict(states)}, found {dict(self.found)}"

    def plan_deaths(self) -> list[str]:
        rng = self.rng
        often = [point for point in RECORD_POINTS if point not in AT_START]
        deaths = [f"{point}:{count}" for point in often for count in (1, rng.randrange(2, 25))]
        deaths += [f"{point}:1" for point in AT_START]
        deaths += [f"{point}:{rng.choice((1, 3))}" for point in OTHER_POINTS]
        deaths += [""] * RANDOM_MOMENTS
        rng.shuffle(deaths)
        return deaths

    def live_and_die(self, death: str) -> None:
        point = death.partition(":")[0]
        life = self._start(death)
        killed_at = point
        try:
            self._driver.connect(self._directory / "socket")
            self._driver.work(STEPS_MAX if point else self.rng.randrange(1, 30))
            self._driver.send_some()
        except Died:
            pass
        else:
            killed_at = "a random moment"
            life.kill()
        self._end(life, killed_at)

    def drain(self) -> None:
        """The last life: what is open is aborted, all that is visible is delivered."""
        life = self._start("", drains=True)
        driver = self._driver
        driver.connect(self._directory / "socket")
        driver.work(5)
        driver.finish()
        published = [job for job in driver.jobs if job.state == PUBLISHED]
        accepted = sum(len(job.visible()) for job in published)

        def drained() -> dict[str, int]:
            with at_once():
                report: dict[str, int] = driver.stats()["daemon"]
            assert not report["held"], report
            return report

        report = eventually_sync(drained)
        assert (report["accepted"], report["delivered"]) == (accepted, accepted)
        assert report["staged"] == 0
        for job in published:
            receipt = driver.receipt(job)
            assert receipt["delivered"] == receipt["accepted"]
            assert receipt["version"] == job.version
        life.kill(signal.SIGTERM)
        assert self._end(life, "") == 0
        expected = {item for job in published for item in job.visible()}
        assert self._came.keys() == expected

    def _start(self, plan: str, *, drains: bool = False) -> Life:
        settings = self._settings(drains=drains)
        self._now = Settings.model_validate(settings)
        return self._zygote.start(settings, plan, self._directory / "daemon.log")

    def _end(self, life: Life, killed_at: str) -> int:
        status = life.wait()
        self._driver.close()
        assert status in (0, -signal.SIGKILL), life.log_text()
        self.deaths[killed_at] += status != 0
        remains = powerless.remains_of(self._state)
        if remains.exists():
            shutil.rmtree(self._state)
            remains.rename(self._state)
        self._look_at_what_came()
        copy = self._directory / "copy"
        if (self._state / "spool").exists():
            shutil.copytree(self._state / "spool", copy)
            self._look_into(QuickFiles(copy))
            shutil.rmtree(copy)
        return status

    def _look_at_what_came(self) -> None:
        visible: dict[str, bytes] = {}
        for job in self._driver.jobs:
            if PUBLISHED in job.may_be():
                visible |= job.visible()
        for line in self._lines.new():
            assert visible.get(line["id"]) == line["payload"].encode(), "it was not published so"
            self._came[line["id"]] += 1

    def _look_into(self, files: QuickFiles) -> None:
        with capture_logs():
            recovered = Journal(files, self._now.spool).recover(0, lambda done, chunks: None)
        writes = Writes()
        assert writes.restore(recovered.records) == 0
        accepted: Counter[tuple[bytes, bytes]] = Counter()
        live: set[bytes] = set()
        for books in (recovered.base, *(chunk.totals for chunk in recovered.chunks)):
            for name, totals in books.items():
                account = parse_account(name)
                accepted[account.write, account.stage] += totals.accepted
        for chunk in recovered.chunks:
            live.update(run.run_id for run in chunk.live)
        files.let_go()
        for job in self._driver.jobs:
            self._check(job, writes, accepted, live)
        self._check_version(writes)

    def _check(
        self,
        job: Job,
        writes: Writes,
        accepted: Counter[tuple[bytes, bytes]],
        live: set[bytes],
    ) -> None:
        published = writes.published(job.write)
        is_over = writes.phase(job.write, NO_STAGE) is not Phase.OPEN
        state = PUBLISHED if published is not None else ABORTED if is_over else OPEN
        assert state in job.may_be(), f"a write is {state}, not {job.may_be()}"
        self.found[state, job.state] += 1
        if published is not None:
            stages = [*published.published, NO_STAGE]
            items = sum(accepted[job.write, stage] for stage in stages)
            assert published.published == job.chosen
            assert items == published.items == len(job.visible()), "a part of a write is visible"
        elif state == OPEN:
            for part in job.parts:
                self._check_open(part, live)

    def _check_open(self, part: Part, live: set[bytes]) -> None:
        there = live & part.sent.keys()
        assert part.acked <= there, "a run that was staged is lost"
        assert not part.is_sealed or there == part.sent.keys()

    def _check_version(self, writes: Writes) -> None:
        versions = [record for record in writes.records() if record["is"] == "version"]
        known = max((record["version"] for record in versions if record["app"] == APP), default=0)
        assert known >= self._driver.version_known, "a version that was published is forgotten"

    def _settings(self, *, drains: bool) -> dict[str, Any]:
        handler = {"handler": {"type": "file", "path": str(self._directory / "out.jsonl")}}
        return {
            "socket": {"path": str(self._directory / "socket"), "max_run_bytes": "16Ki"},
            "state_dir": str(self._state),
            "spool": {
                "chunk_size": "64Ki",
                "max_bytes": "64Mi",
                "min_free_bytes": "0",
                "ballast_bytes": "64Ki",
                "meta_sync_interval": "10ms",
                "spare_chunks": self.rng.choice((0, 1)),
            },
            "queues": {
                OUT: handler,
                # It overflows to the cold store: receipts add up what both have.
                HOLD: {"warm_max_items": 20} | (handler if drains else {}),
            },
            "log": {"format": "json"},
            "drain_timeout": "60s",
        }
