"""Staging at a running spooler, for tests: what tasks and a driver would ask of it."""

from pathlib import Path
from typing import Any, TypeVar

from actors.model.clock import wall_ms
from actors.model.runs import Fate
from actors.ports.writes import SealedStage, Verdict, WriteView
from actors.spooler.client import Question
from actors.spooler.messages import (
    Append,
    Apply,
    AskReceipt,
    AskWrite,
    ForgetWrites,
    Seal,
)
from actors.spooler.writes import Stage
from forebay.errors import Refused
from forebay.run import RunHead
from forebay.stage_frames import WRITE_HEADER
from forebay.wire import Outcome
from tests.actors.spooler.spooling import Desk, make_run

Run = tuple[RunHead, bytes]
T = TypeVar("T")

W1, W2, W3 = (bytes([number]) * 16 for number in (1, 2, 3))
A, B, C = b"A" * 16, b"B" * 16, b"C" * 16


def staged_run(write: bytes = W1, **fields: Any) -> Run:
    return make_run(headers={WRITE_HEADER: write.hex()}, **fields)


async def ask(desk: Desk, request: Question[T]) -> T | Refused:
    """The answer, also if it is a refusal."""
    try:
        return await desk.client.ask(request)
    except Refused as refused:
        return refused


async def stage(desk: Desk, write: bytes, stage_id: bytes, *runs: Run) -> list[Outcome | Refused]:
    """Stages runs and waits for their answers."""
    first = 1_000_000 + len(desk.inbox.answers)
    for order, (head, data) in enumerate(runs):
        append = Append(head, data, desk.inbox, first + order, write, stage_id)
        await desk.client.send(append)
    wanted = range(first, first + len(runs))
    while not all(sequence in desk.inbox.answers for sequence in wanted):
        await desk.inbox.arrived.wait()
    return [desk.inbox.answers[sequence] for sequence in wanted]


async def seal(
    desk: Desk, write: bytes, stage_id: bytes, runs: int, items: int
) -> SealedStage | Refused | None:
    return await ask(desk, Seal(write, stage_id, runs, items))


async def stage_and_seal(desk: Desk, write: bytes, stage_id: bytes, *runs: Run) -> None:
    assert await stage(desk, write, stage_id, *runs) == [Outcome.STORED] * len(runs)
    items = sum(head.count for head, _ in runs)
    assert isinstance(await seal(desk, write, stage_id, len(runs), items), SealedStage)


async def view(
    desk: Desk, write: bytes, *stages: bytes, app: str | None = None
) -> WriteView | Refused:
    return await ask(desk, AskWrite(write, stages, app))


async def publish(
    desk: Desk,
    write: bytes,
    *stages: bytes,
    app: str | None = None,
    version: int | None = None,
) -> int | Refused:
    """What the cold store decides of stages that are sealed here is carried out; how many of their
    items are missing."""
    here = await view(desk, write, *stages)
    assert isinstance(here, WriteView)
    items = sum(stage.items for stage in here.sealed)
    queues = tuple(sorted({queue for stage in here.sealed for queue in stage.queues}))
    verdict = Verdict(write, True, wall_ms(), stages, items, queues, app, version)
    return await ask(desk, Apply(verdict))


async def abort(desk: Desk, write: bytes) -> int | Refused:
    return await ask(desk, Apply(Verdict(write, False, 0)))


async def receipt(desk: Desk, write: bytes) -> dict[str, int]:
    """The journal's part, in items, without what is 0; empty if there is none."""
    # The books learn of outcomes when these are written.
    await desk.stats()
    found = await desk.client.ask(AskReceipt(write))
    counts = ("accepted", "delivered", "dropped", "deleted", "lost")
    return {name: getattr(found, name) for name in counts if getattr(found, name)} if found else {}


async def forget(desk: Desk, before_ms: int) -> list[bytes]:
    return await desk.client.ask(ForgetWrites(before_ms))


async def deliver(desk: Desk, runs: int, queue: str = "q", fate: Fate = Fate.DELIVERED) -> None:
    await desk.settle(*await desk.take_runs(runs, queue), fate=fate)


async def books(desk: Desk) -> dict[str, int]:
    """The whole daemon's, of which every report must balance."""
    entry: dict[str, int] = (await desk.stats())["daemon"]
    over = sum(
        entry[name] for name in ("delivered", "dropped", "deleted", "lost", "dead", "handed_over")
    )
    assert entry["accepted"] == over + entry["held"]
    assert min(entry.values()) >= 0
    parts = ("spooled", "scheduled", "warm", "cold", "running")
    return {name: count for name, count in entry.items() if count and name not in parts}


def lose_indexes(directory: Path) -> None:
    for index in directory.glob("*.index"):
        index.unlink()


def code_of(answer: object) -> str:
    return answer.code if isinstance(answer, Refused) else "ok"


def positions(stage: Stage) -> list[int]:
    places = [place for lane in stage.lanes.values() for place in lane.peek(len(lane), 2**62)]
    return sorted(place.position for place in places)
