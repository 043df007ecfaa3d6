"""The power goes at any call to the disk: what was acknowledged is there when it is back.

A journal is driven as the spooler drives it, on a disk that forgets what was not synced. Each
spool loses its power many times, some of them while it recovers. Marks of deliveries may be
forgotten, so that settled items come back; runs and drops may not.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest
from structlog.testing import capture_logs

from actors.model.books import total
from actors.model.runs import Fate, StoredRun
from actors.ports.journal import ItemMark, LiveRun, Recovered
from actors.spooler.ledger import ItemsFinished, Ledger
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from forebay.run import RunHead
from tests.crash.forgetful_files import ForgetfulFiles, PowerCut
from tests.crash.seeds import EFFORT, seeded
from tests.crash.spool_maker import SETTINGS, make_run

SPOOLS: Final = 3 * EFFORT
CUTS: Final = 50
CALLS_MAX: Final = 400
"""Between two power cuts, at most."""
BACKLOG_MAX: Final = 60
"""In runs, about."""

Run = tuple[RunHead, bytes]


@pytest.mark.parametrize("spool", range(SPOOLS))
def test_what_was_acknowledged_survives_power_loss(spool: int, tmp_path: Path) -> None:
    rng = seeded("power", spool)
    world = World(rng, tmp_path)
    with capture_logs():
        for _ in range(CUTS):
            world.live_until_power_cut()
        world.look_at_the_end()
    print(world.summary())


def test_new_directory_is_durable_in_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    fsync = os.fsync

    def remember(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", remember)
    Files(tmp_path / "spool").create_directory()
    assert synced == [str(tmp_path)]


class World:
    def __init__(self, rng: Random, directory: Path) -> None:
        self._rng = rng
        self._directory = directory
        self._cuts = 0
        self._acked: dict[bytes, Run] = {}
        self._unknown: dict[bytes, Run] = {}
        """Was being committed when the power went."""
        self._delivered: set[bytes] = set()
        self._dropped: set[bytes] = set()
        """For good: the commit of the mark returned."""
        self._maybe_dropped: set[bytes] = set()

    def live_until_power_cut(self) -> None:
        rng = self._rng
        cut_after = rng.randrange(1, rng.choice((10, 60, CALLS_MAX)))
        files = ForgetfulFiles(self._directory / f"{self._cuts}", cut_after)
        try:
            life = Life(rng, files, self)
            while True:
                life.do_something()
        except PowerCut:
            files.let_go()
        self._cuts += 1
        files.make_what_is_left(self._directory / f"{self._cuts}", rng)
        shutil.rmtree(files.directory)

    def look_at_the_end(self) -> None:
        files = ForgetfulFiles(self._directory / f"{self._cuts}", 10**9)
        Life(self._rng, files, self)
        Life(self._rng, files, self)
        files.let_go()

    def check(self, live: dict[bytes, LiveRun], runs: dict[bytes, bytes]) -> None:
        """What a recovery found, by run id."""
        for run_id, (_, data) in self._acked.items():
            if run_id in self._dropped:
                assert run_id not in live, "a run that was dropped has come back"
            elif run_id not in self._delivered and run_id not in self._maybe_dropped:
                assert runs.get(run_id) == data, "a run that was acknowledged is lost"
        known = self._acked | self._unknown
        for run_id, data in runs.items():
            assert known[run_id][1] == data
        for run_id in self._unknown.keys() & runs.keys():
            self._acked[run_id] = self._unknown[run_id]
        self._dropped |= self._maybe_dropped - live.keys()
        self._delivered = self._delivered - live.keys()
        self._unknown.clear()
        self._maybe_dropped.clear()

    def try_to_commit(self, runs: list[Run], dropped: list[bytes]) -> None:
        self._unknown.update({head.run_id: (head, data) for head, data in runs})
        self._maybe_dropped.update(dropped)

    def committed(self, runs: list[Run], delivered: list[bytes], dropped: list[bytes]) -> None:
        for head, data in runs:
            self._acked[head.run_id] = self._unknown.pop(head.run_id, (head, data))
        self._delivered.update(delivered)
        self._dropped.update(dropped)
        self._maybe_dropped.clear()

    def summary(self) -> str:
        return (
            f"{self._cuts} power cuts; {len(self._acked)} runs were acknowledged, "
            f"{len(self._delivered)} delivered, {len(self._dropped)} dropped"
        )

    def items_stored(self) -> tuple[int, int]:
        """The least and the most that may count as accepted."""
        sure = sum(head.count for head, _ in self._acked.values())
        return sure, sure + sum(head.count for head, _ in self._unknown.values())


class Life:
    """A journal and what the spooler would know of it."""

    def __init__(self, rng: Random, files: ForgetfulFiles, world: World) -> None:
        self._rng = rng
        self._world = world
        self._journal = Journal(files, SETTINGS)
        self._ledger = Ledger()
        self._held: dict[int, StoredRun] = {}
        self._adopt(self._journal.recover(1000, lambda done, chunks: None))
        self._journal.look()

    def _adopt(self, recovered: Recovered) -> None:
        least, most = self._world.items_stored()
        self._ledger.load(recovered.base, recovered.chunks)
        live = {}
        for chunk in recovered.chunks:
            for found in chunk.live:
                (run,) = self._journal.read([(chunk.number, found.place)])
                assert isinstance(run, StoredRun), f"a live run cannot be read: {run}"
                assert run.head.run_id not in live, "a run is stored twice"
                live[run.head.run_id] = found
                self._held[found.position] = run
                self._ledger.add_live(found.size)
        items = sum(found.items - found.done.bit_count() for found in live.values())
        assert total(self._ledger.books).held == items
        assert least <= total(self._ledger.books).accepted <= most
        self._world.check(live, {run.head.run_id: run.data for run in self._held.values()})

    def do_something(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self._commit,
            self._commit,
            self._commit,
            self._journal.write_indexes,
            self._journal.prepare,
            self._free,
            self._sync_marks,
            self._write_meta,
        )
        self._rng.choice(steps)()

    def _commit(self) -> None:
        """A group: new runs, marks of deliveries, and now and then a drop."""
        rng = self._rng
        runs = [make_run(rng) for _ in range(rng.randrange(6))]
        deliveries_max = 12 if len(self._held) > BACKLOG_MAX else rng.choice((1, 5, 8))
        oldest = sorted(self._held)[: rng.randrange(deliveries_max)]
        drops = rng.random() < 0.2
        fate = Fate.DROPPED if drops else Fate.DELIVERED
        gone = [self._held[position] for position in oldest]
        gone_ids = [run.head.run_id for run in gone]
        self._world.try_to_commit(runs, gone_ids if drops else [])
        if not drops:
            # They were delivered before, whether their marks are written or not.
            self._world.committed([], gone_ids, [])
        committed = self._journal.commit(
            runs, [self._mark(run, fate) for run in gone], durable=drops
        )
        assert committed.failure is None
        assert committed.marks_failure is None
        for number in committed.started:
            self._ledger.start(number)
        placed = zip(runs, committed.positions, committed.sizes, strict=True)
        for (head, data), position, size in placed:
            self._ledger.accept(position, size, head.queue, head.count)
            self._held[position] = StoredRun(position, size, head, data)
        for number in committed.sealed:
            self._ledger.seal(number)
        for run in gone:
            del self._held[run.position]
            self._ledger.finish(
                ItemsFinished(run.position, run.head.queue, run.head.count, fate, run.size)
            )
        self._world.committed(runs, [], gone_ids if drops else [])

    def _mark(self, run: StoredRun, fate: Fate) -> ItemMark:
        number = self._ledger.number_of(run.position)
        offset = run.position - number
        return ItemMark(number, offset, run.head.run_id, 0, run.head.count, fate)

    def _free(self) -> None:
        dead = self._ledger.dead_chunks()
        if dead:
            self._journal.free(dead, self._ledger.base_without(dead), {})
            self._ledger.forget(dead)

    def _sync_marks(self) -> None:
        assert self._journal.commit([], [], durable=True).marks_failure is None

    def _write_meta(self) -> None:
        ledger = self._ledger
        self._journal.write_meta(
            ledger.reader_offset(), ledger.writer_offset, ledger.live_runs, ledger.live_bytes
        )
