"""Taking back: items that newer ones of the same key may replace, and that nobody has in hand yet.

What the promoter has brought to warm, or has in line for it, counts as started in the cold store:
its row is leased. Before a push is decided on that may replace such items, they are withdrawn from
warm or from the line, in one step, so that nobody can lease them any more, and go back to the cold
store as rows that wait. Then the arbiter (actors/keys/arbiter.py) finds them waiting. What somebody
has leased stays where it is: that has started, and is a conflict.

What another daemon has in line, and has not brought to warm yet, that daemon is asked for
(actors/keys/recall.py), and gives back in the same way.

Owns nothing. Durable when: the cold store has them back. What it does not take now is the
failover's, and the push is refused: if the store has them although it did not say so, nobody else
may have them. A push that is refused has changed nothing but where an item waits.

What it can't do: take back what another daemon does not answer for in time; and keep the promoter
of a third daemon from taking the item again between the two steps (those of the two concerned rest
for `REST_S`). Both are conflicts, as if the item had been leased.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import trio

from actors.keys.recall import Recalling
from actors.model.keys import KeyRule, Offer
from actors.model.slices import InCold, Slice
from actors.ports.tiers import Limits, StoreUnavailable
from actors.tiers.failover import Held
from actors.tiers.router import unlocked
from actors.tiers.tiers import Tiers

RUNS_ONE_BY_ONE: Final = 8
"""Of more than so many runs, all that is in warm is looked at once, not once for each."""
NO_LIMITS: Final = Limits(2**62, 2**62)
REST_S: Final = 0.25
"""So long a promoter takes nothing more of a queue of which it has just given something back."""


class TakingBack:
    def __init__(
        self,
        tiers: Tiers,
        rule: Callable[[str], KeyRule],
        recalling: Recalling | None = None,
    ) -> None:
        """`recalling`: where daemons share a cold store."""
        self._tiers = tiers
        self._warm = tiers.warm
        self._cold = tiers.cold
        self._rule = rule
        self._recalling = recalling

    async def make_way(self, offers: Iterable[Offer]) -> None:
        """StoreUnavailable: nobody could say what is started, or take it back."""
        for queue, keys in sorted(replacing(offers, self._rule).items()):
            started = await self._cold.started(queue, sorted(keys))
            if started:
                taken = await self.take_back(queue, started)
                if self._recalling is not None and (left := beyond(started, taken)):
                    await self._recall(self._recalling, queue, left)

    async def _recall(self, recalling: Recalling, queue: str, wanted: Mapping[bytes, int]) -> None:
        """What is leased from warm has started, whoever is asked; the rest others may have."""
        seen = await self._warm.locate(queue, frozenset(wanted))
        leased = {run_id: where.leased for run_id, where in seen.items()}
        if left := beyond(wanted, leased):
            if (line := self._tiers.states.line(queue)) is not None:
                line.rest(REST_S)
            await recalling.recall(queue, left)

    async def take_back(self, queue: str, started: Mapping[bytes, int]) -> dict[bytes, int]:
        """`started`: by run, bits of the items that are wanted back; which of them are."""
        taken: dict[bytes, int] = {}
        # From the line things go to warm, and never back.
        line = self._tiers.states.line(queue)
        if line is not None:
            own, rest = split(line.withdraw(), started)
            line.put_back(rest)
            if own:
                line.rest(REST_S)
            await self._give_back(queue, own)
            note(taken, own)
        one_by_one: list[bytes | None] = [*started]
        for run_id in one_by_one if len(started) <= RUNS_ONE_BY_ONE else [None]:
            own, rest = split(await self._warm.withdraw(queue, run_id=run_id), started)
            if rest:
                # They were here a moment ago, and go back whatever the limits say.
                await self._warm.enter(queue, rest, NO_LIMITS)
            await self._give_back(queue, own)
            note(taken, own)
        return taken

    async def _give_back(self, queue: str, slices: Sequence[Slice]) -> None:
        if not slices:
            return
        outcomes = [unlocked(slice_) for slice_ in slices]

        async def again() -> None:
            await self._cold.settle(outcomes)

        async def let_go() -> None:
            await self._warm.enter(queue, slices, NO_LIMITS)

        try:
            await again()
        except (StoreUnavailable, trio.Cancelled):
            with trio.CancelScope(shield=True):
                size = sum(slice_.bytes for slice_ in slices)
                await self._tiers.failover.hold(Held(size, again, let_go))
            raise
        except Exception:
            # The step was undone, and would fail again.
            await let_go()
            raise


def replacing(offers: Iterable[Offer], rule: Callable[[str], KeyRule]) -> dict[str, set[bytes]]:
    """By queue, the keys of items that may take another one's place."""
    found: dict[str, set[bytes]] = {}
    for offer in offers:
        queue = offer.run.head.queue
        if offer.only_if is not None or rule(queue).policy == "replace":
            keys = offer.run.keys()
            found.setdefault(queue, set()).update(filter(None, keys))
    return found


def split(slices: Sequence[Slice], wanted: Mapping[bytes, int]) -> tuple[list[Slice], list[Slice]]:
    """The items that are wanted, of rows of the cold store, and the others."""
    own: list[Slice] = []
    rest: list[Slice] = []
    for slice_ in slices:
        bits = 0
        if isinstance(slice_.run.owner, InCold):
            bits = slice_.bits & wanted.get(slice_.run.head.run_id, 0)
        if bits:
            own.append(replace(slice_, bits=bits))
        if slice_.bits & ~bits:
            rest.append(replace(slice_, bits=slice_.bits & ~bits))
    return own, rest


def note(taken: dict[bytes, int], slices: Sequence[Slice]) -> None:
    for slice_ in slices:
        run_id = slice_.run.head.run_id
        taken[run_id] = taken.get(run_id, 0) | slice_.bits


def beyond(wanted: Mapping[bytes, int], found: Mapping[bytes, int]) -> dict[bytes, int]:
    """What is wanted, and is not among what was found."""
    left = {run_id: bits & ~found.get(run_id, 0) for run_id, bits in wanted.items()}
    return {run_id: bits for run_id, bits in left.items() if bits}
