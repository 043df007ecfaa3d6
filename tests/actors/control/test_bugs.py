"""What a request sets going fails alone when it meets a bug: the actors go on, nothing is lost."""

from pathlib import Path
from typing import Any

import pytest

from actors.control.purge import Purging
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from actors.spooler.messages import Finish
from actors.spooler.reading import Peeking
from forebay.errors import Refused
from tests.actors.control.test_control import dead
from tests.eventually import eventually
from tests.rig.rig import Rig, running


async def bug(*_args: object, **_options: object) -> Any:
    raise OverflowError("a bug")


async def corrupt(*_args: object, **_options: object) -> Any:
    raise StoreCorrupt("cold.sqlite: damaged")


@pytest.mark.parametrize("failure", [bug, corrupt])
async def test_job_that_meets_a_bug_has_failed_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    async with running(tmp_path) as rig:
        await dead(rig, 3)
        with monkeypatch.context() as patch:
            patch.setattr(rig.life.sqlite.dead_letters, "remove", failure)
            job = await ended(rig, "failed")
            assert ("INTERNAL" if failure is bug else "damaged") in job["error"]
        assert (await ended(rig, "done"))["done"] == 3


async def ended(rig: Rig, state: str) -> dict[str, Any]:
    """A job that removes dead letters, once it has ended so."""
    job = await rig.control("job.start", what="dead.remove", which={})

    async def has_ended() -> dict[str, Any]:
        shown = await rig.control("job.show", id=job["id"])
        assert shown["state"] == state, shown
        return shown

    return await eventually(has_ended)


async def test_look_that_meets_a_bug_fails_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = INTERNAL_ERRORS.total
    async with running(tmp_path) as rig:
        (item,) = await rig.push(1, due_s=3600)
        with monkeypatch.context() as patch:
            patch.setattr(Peeking, "_described", lambda *_: 1 / 0)
            with pytest.raises(Refused, match="INTERNAL"):
                await rig.control("items.show", id=item)
        assert (await rig.control("items.show", id=item))["id"] == item
    assert INTERNAL_ERRORS.total == before + 1


async def test_purge_that_meets_a_bug_puts_back_what_it_withdrew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, {"held": {"handler": {"type": "pull"}}}) as rig:

        async def in_warm() -> int:
            items = (await rig.fill("held")).waiting
            assert items == 5
            return items

        await rig.push(5, "held")
        items: int = await eventually(in_warm)
        with monkeypatch.context() as patch:
            patch.setattr(Purging, "_delete_cold", bug)
            with pytest.raises(OverflowError):
                await rig.control("queues.purge", queue="held")
        assert await in_warm() == items
        assert (await rig.control("queues.purge", queue="held"))["deleted"] == 5


async def test_report_behind_the_end_of_the_spooler_says_that_it_has_stopped(
    tmp_path: Path,
) -> None:
    """The metrics ask each second, also while the daemon stops."""
    async with running(tmp_path) as rig:
        reporter = rig.life.daemon.metrics
        await rig.life.spooler.client.send(Finish())
        await rig.life.spooler.finished.wait()
        with pytest.raises(StoreUnavailable, match="the spooler has stopped"):
            await reporter.report()
        with pytest.raises(StoreUnavailable, match="the spooler has stopped"):
            await rig.control("streams.show", queue="q", consumer="c")
