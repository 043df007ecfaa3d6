"""What every warm queue must do: each move of an item goes from and to what the machine of states
allows, and made in another state it is refused and changes nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from actors.control.item_view import near_workers
from actors.model.moves import NEAR, WarmMove
from actors.model.slices import LentRun, Slice
from actors.model.states import State
from actors.ports.tiers import Ending, Fill
from tests.conformance.warm_rig import LEASE_S, PLENTY, Checks, Rig, whole

CHECKS = Checks()
LATER_MS = 5000


@dataclass(slots=True)
class Case:
    """One item."""

    rig: Rig
    run: LentRun
    token: int = 0

    @property
    def scheduled(self) -> Slice:
        return replace(whole(self.run), due_ms=self.rig.now_ms() + LATER_MS)

    async def enter(self) -> None:
        await self.rig.warm.enter("q", [whole(self.run)], PLENTY)

    async def come_due(self) -> None:
        await self.rig.advance(LATER_MS)
        await self.rig.warm.fills()

    async def lease(self) -> None:
        for leased in await self.rig.warm.lease("q", 10, 10**9, LEASE_S):
            self.token = leased.token

    async def put_back(self) -> None:
        await self.rig.warm.end("q", [Ending(self.token, (whole(self.run),))])

    async def put_off(self) -> None:
        await self.rig.warm.end("q", [Ending(self.token, (self.scheduled,))])

    async def expire(self) -> None:
        await self.rig.advance(round(LEASE_S * 1000))
        await self.rig.warm.expire()

    async def withdraw(self) -> None:
        await self.rig.warm.withdraw("q")

    async def state(self) -> State | None:
        """None: it is not here, but with its owner."""
        found = await self.rig.warm.locate("q", frozenset({self.run.head.run_id}))
        here = found.get(self.run.head.run_id)
        return None if here is None else near_workers(1, here)


Step = Callable[[Case], Awaitable[None]]
STEPS: dict[WarmMove, Step] = {
    WarmMove.ENTER: Case.enter,
    WarmMove.COME_DUE: Case.come_due,
    WarmMove.LEASE: Case.lease,
    WarmMove.PUT_BACK: Case.put_back,
    WarmMove.EXPIRE: Case.expire,
    WarmMove.WITHDRAW: Case.withdraw,
}


async def in_state(rig: Rig, state: State | None, *, was_leased: bool = False) -> Case:
    """`was_leased`: somebody had it, and still knows the token."""
    case = Case(rig, rig.run(1, 1))
    if was_leased:
        await case.enter()
        await case.lease()
        await case.withdraw()
        await rig.warm.end("q", [Ending(case.token)])
    match state:
        case State.QUEUED:
            await case.enter()
        case State.SCHEDULED:
            await rig.warm.enter("q", [case.scheduled], PLENTY)
        case State.RUNNING:
            token = case.token
            await case.enter()
            await case.lease()
            case.token = token if was_leased else case.token
    assert await case.state() is state
    return case


@CHECKS
async def every_move_goes_where_the_machine_says(rig: Rig) -> None:
    assert STEPS.keys() == set(WarmMove)
    here = {State.QUEUED, State.SCHEDULED, State.RUNNING}
    for move, step in STEPS.items():
        befores: set[State | None] = {before for before in move.value.before if before in here}
        for before in befores or {None}:
            case = await in_state(rig, before)
            await step(case)
            after = await case.state()
            assert after in move.value.after if after is not None else move.value.after - here
            await case.withdraw()
            if await case.state() is not None:
                await rig.warm.end("q", [Ending(case.token)])
            assert await rig.warm.fill("q") == Fill()


@CHECKS
async def what_was_leased_is_put_off_as_well(rig: Rig) -> None:
    case = await in_state(rig, State.RUNNING)
    await case.put_off()
    assert await case.state() is State.SCHEDULED
    assert {State.SCHEDULED, State.QUEUED} == NEAR == WarmMove.PUT_BACK.value.after


@CHECKS
async def no_other_move_changes_anything(rig: Rig) -> None:
    for move in (WarmMove.LEASE, WarmMove.PUT_BACK, WarmMove.WITHDRAW):
        for state in (None, State.QUEUED, State.SCHEDULED, State.RUNNING):
            if state in move.value.before and move is not WarmMove.PUT_BACK:
                continue
            # Of what runs a stale token must not put anything back.
            case = await in_state(rig, state, was_leased=True)
            before = await rig.warm.fill("q")
            await STEPS[move](case)
            assert await case.state() is state, (move, state)
            assert await rig.warm.fill("q") == before
            await case.expire()
            await case.withdraw()
            assert await rig.warm.fill("q") == Fill()
