"""A push whose answer was lost comes again: it is stored once, whatever happened in between."""

from pathlib import Path

from structlog.testing import capture_logs
from trio.testing import MockClock

from forebay.wire import Outcome
from tests.crash.spooler_time import until
from tests.unit.spooling import KIB, make_run, running_spooler


async def test_run_is_known_after_its_chunk_is_gone(tmp_path: Path, mock_clock: MockClock) -> None:
    """Stored, killed before the answer; recovered, delivered, freed; killed again; sent again.

    docs/protocol.md: the last `spool.dedup_runs` ids are remembered across restarts.
    """
    run = make_run()
    others = [make_run(items=1, size=20 * KIB) for _ in range(10)]
    with capture_logs():
        async with running_spooler(tmp_path) as desk:
            await desk.push(run, *others)
            await desk.settle(*await desk.take())
            await until(mock_clock, desk, lambda report: report["spool"]["chunks"] <= 1)
            assert await desk.push(run) == [Outcome.DUPLICATE]
        async with running_spooler(tmp_path) as desk:
            assert await desk.push(run) == [Outcome.DUPLICATE]
            assert (await desk.totals())["accepted"] == 13
