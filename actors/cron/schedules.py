"""Schedules: looks after schedules, so that the next ticks of each are always in the cold store.

It owns the book of schedules (actors/config/book.py), and the list of schedules that are installed.
The cold store owns the ticks, which are delayed items like any other: workers need not know of
schedules, and ticks come due even while this daemon is down. actors/cron/look_ahead.py decides what
to install; the store's marks (actors/ports/ticks.py) ensure that each tick is installed once in a
fleet.

The first look comes before anything is delivered, so that missed ticks are decided first. While the
store is away nothing happens; the first look after that makes up for it. On cancel the store
completes a step that has begun, and the restarted daemon continues from the mark. On drain it
simply ends: installed ticks come due whether or not this daemon runs.

It cannot tick more often than once per second, or tell how late a tick was delivered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from actors.config.book import Book, Kept, Keys
from actors.config.schedules import (
    SCHEDULE,
    SCHEDULE_HEADER,
    TICK_HEADER,
    Installed,
    KeptSchedules,
    ScheduleSettings,
)
from actors.cron.look_ahead import FOREVER_MS, REFRESH_S_MAX, TickStep, Wanted, next_step
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.keys import ItemRef, Offer, Phase
from actors.ports.ticks import (
    Marks,
    Span,
    Tick,
    TickChange,
    TickMark,
    TickOutcome,
    TickStore,
    tick_key,
)
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from forebay.errors import Refused
from forebay.run import Run, encode_run, read_head

log = structlog.get_logger()

TRIES_MAX: Final = 10
"""How many times a step is decided again because another daemon was quicker."""
AWAY_PAUSE_S: Final = 5.0
RUN: Final = "run"
"""Replaces the fingerprint in the keys of manual runs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    change: TickChange
    fingerprint: str
    step: TickStep | None
    """None: the schedule is removed."""


class Schedules:
    def __init__(
        self,
        configured: Mapping[str, ScheduleSettings],
        kept: Kept[KeptSchedules],
        ticks: TickStore,
        check: Callable[[ScheduleSettings], int],
        has_come: Callable[[str], None],
        failed: Callable[[str, str, str], None],
    ) -> None:
        """`check` returns the priority of a schedule's ticks, and raises Refused if its queue or
        priority does not exist. `has_come` is called with each queue that has new ticks; `failed`
        with a schedule that cannot be installed, the reason, and its queue."""
        self._failed = failed
        self._kept = kept
        self.book = Book(
            SCHEDULE,
            configured,
            kept.value.schedules,
            lambda schedules: kept.save(replace(kept.value, schedules=schedules)),
            lambda _, schedule: check(schedule),
        )
        self._ticks = ticks
        self._check = check
        self._has_come = has_come
        self._changing = trio.Lock()
        self._woken = trio.Event()
        self._look_at: dict[str, float] = {}
        """When each schedule is looked at next; at once if it is missing."""
        self._problems: dict[str, str] = {}
        self._marks: dict[str, TickMark] = {}
        """The marks as last seen, for queries."""
        self._disputed: set[str] = set()
        self._broken: set[str] = set()
        """Schedules whose planning raises an unexpected exception that is already logged."""
        self._is_away = False
        self.installed_total = 0
        self.missed_total = 0

    def problem(self, name: str) -> str:
        """Why a schedule is not installed; empty if it is."""
        return self._problems.get(name, "")

    def mark(self, name: str) -> TickMark | None:
        """How far its ticks, or those of another configuration, are installed, as this daemon last
        saw it, at most a minute ago; None: none are."""
        return self._marks.get(name)

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        """Raises StoreUnavailable if the store does not answer."""
        return await self._ticks.phases(ticks)

    def figures(self) -> dict[str, int]:
        return {
            "schedules": len(self.book.definitions),
            "installed_total": self.installed_total,
            "missed_total": self.missed_total,
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.look()
        task_status.started()
        while True:
            with trio.move_on_after(self._pause_s()):
                await self._woken.wait()
            self._woken = trio.Event()
            await self.look()

    def _pause_s(self) -> float:
        if self._is_away:
            return AWAY_PAUSE_S
        now = trio.current_time()
        first = min(self._look_at.values(), default=now + REFRESH_S_MAX)
        return min(max(0.0, first - now), REFRESH_S_MAX)

    # Requests of operators. The book is changed durably first; if the store is away, the ticks
    # follow when it is back.

    async def add(self, name: str, keys: Keys) -> None:
        async with self._changing:
            await self.book.add(name, keys)
        await self._look_at_once(name)

    async def change(self, name: str, keys: Keys) -> None:
        async with self._changing:
            await self.book.change(name, keys)
        await self._look_at_once(name)

    async def remove(self, name: str) -> None:
        async with self._changing:
            await self.book.remove(name)
        await self._look_at_once(name)

    async def run_now(self, name: str) -> ItemRef:
        """Pushes what a tick would push, in addition to the ticks. May raise StoreUnavailable."""
        settings = self.book.find(name)
        priority = self._check(settings)
        async with self._changing:
            for more_ms in range(TRIES_MAX):
                marks = await self._ticks.marks()
                mark = marks.by_name.get(name)
                at_ms = marks.now_ms + more_ms
                offer = make_offer(name, settings, priority, RUN, at_ms, due_ms=0)
                # The mark stays as it is: only the offer of this step matters.
                change = TickChange(name, mark, mark, None, (offer,))
                (done,) = await self._ticks.change([change])
                if done.installed:
                    self._has_come(settings.queue)
                    return ItemRef(offer.run.head.run_id, 0)
        raise StoreUnavailable(f"{name} is being changed by other daemons all the time")

    async def reload(self, configured: Mapping[str, ScheduleSettings]) -> None:
        async with self._changing:
            self.book.reload(configured)
            self._look_at.clear()
        self._woken.set()

    # Looking.

    async def _look_at_once(self, name: str) -> None:
        self._look_at.pop(name, None)
        await self.look()
        # The looking task must wake up at another time now.
        self._woken.set()

    async def look(self) -> None:
        """Updates the ticks of all schedules that are due for a look."""
        async with self._changing:
            try:
                for _ in range(TRIES_MAX):
                    if await self._look():
                        break
            except (StoreUnavailable, StoreCorrupt, OSError) as problem:
                # All schedules are looked at when it is back.
                self._look_at.clear()
                self._see(problem)
            except Exception as problem:
                # Without new ticks the daemon can still deliver; an error here must not stop it.
                self._look_at.clear()
                if not self._is_away:
                    INTERNAL_ERRORS.note(problem, "cron")
                self._is_away = True
            else:
                self._see(None)

    async def _look(self) -> bool:
        """False: another daemon was quicker, and some schedules must be decided again."""
        names = self._due_names()
        if not names:
            return True
        marks = await self._ticks.marks()
        self._marks = dict(marks.by_name)
        planned: list[_Planned] = []
        for name in names:
            found = self._plan_alone(name, marks)
            if found is not None:
                planned.append(found)
            # A configuration may have a thousand schedules.
            await trio.lowlevel.checkpoint()
        if not planned:
            return True
        await self._note(planned, is_done=False)
        outcomes = await self._ticks.change([each.change for each in planned])
        done = [each for each, out in zip(planned, outcomes, strict=True) if out.is_done]
        for each, outcome in zip(planned, outcomes, strict=True):
            self._tell(each, outcome)
        await self._note(done, is_done=True)
        return len(done) == len(planned)

    def _due_names(self) -> list[str]:
        known = {*self.book.definitions, *self._kept.value.installed}
        self._look_at = {name: at for name, at in self._look_at.items() if name in known}
        now = trio.current_time()
        return sorted(name for name in known if self._look_at.get(name, now) <= now)

    def _plan_alone(self, name: str, marks: Marks) -> _Planned | None:
        """Plans one schedule; a bug there must stop neither the other schedules nor the daemon."""
        try:
            found = self._plan(name, marks)
        except Exception as problem:
            if name not in self._broken:
                self._broken.add(name)
                INTERNAL_ERRORS.note(problem, "cron", schedule=name)
            self._problems[name] = "unexpected error: see daemon.internal_error in the log"
            return None
        self._broken.discard(name)
        return found

    def _plan(self, name: str, marks: Marks) -> _Planned | None:
        self._look_at[name] = trio.current_time() + REFRESH_S_MAX
        settings = self.book.definitions.get(name)
        mark, installed = marks.by_name.get(name), self._kept.value.installed.get(name)
        if settings is None or not settings.enabled:
            self._problems.pop(name, None)
            return None if installed is None else removal(name, mark, installed, marks.now_ms)
        priority = self._usable(name, settings)
        if priority is None:
            return None
        print_ = settings.fingerprint
        is_new = installed != Installed(print_, is_done=True)
        wanted = Wanted(settings.queue, print_, settings.grid, settings.missed, is_new)
        step = next_step(mark, wanted, marks.now_ms)
        self._look_at[name] = trio.current_time() + step.refresh_s
        self._see_dispute(name, mark, step, print_)
        if not step.is_due:
            return None
        offers = tuple(
            make_offer(name, settings, priority, print_, tick, marks.now_ms) for tick in step.ticks
        )
        change = TickChange(name, mark, step.mark, step.drop, offers, step.missed_ms)
        return _Planned(change, print_, step)

    def _usable(self, name: str, settings: ScheduleSettings) -> int | None:
        try:
            priority = self._check(settings)
        except Refused as problem:
            if self._problems.get(name) != problem.text:
                log.error("cron.unusable", schedule=name, error=problem.text)
                self._failed(name, problem.text, settings.queue)
            self._problems[name] = problem.text
            return None
        self._problems.pop(name, None)
        return priority

    async def _note(self, planned: Sequence[_Planned], *, is_done: bool) -> None:
        """Records what is about to be installed, and then what was."""
        installed = dict(self._kept.value.installed)
        for each in planned:
            name = each.change.name
            if each.step is None:
                if is_done:
                    installed.pop(name, None)
            elif installed.get(name) != Installed(each.fingerprint, is_done=True):
                installed[name] = Installed(each.fingerprint, is_done)
        await self._kept.save(replace(self._kept.value, installed=installed))

    def _tell(self, planned: _Planned, outcome: TickOutcome) -> None:
        change, step = planned.change, planned.step
        if not outcome.is_done:
            self._look_at[change.name] = trio.current_time()
            return
        self.installed_total += outcome.installed
        after = change.mark_after(outcome.dropped)
        if after is not None:
            self._marks[change.name] = after
        if step is None:
            if change.before is not None:
                log.info("cron.removed", schedule=change.name, ticks=outcome.dropped)
            return
        assert change.after is not None
        if change.offers:
            self._has_come(change.after.queue)
        missed = 0 if step.missed_ms is None else step.given_up + outcome.dropped
        if missed:
            self.missed_total += missed
            log.warning("cron.missed", schedule=change.name, ticks=missed)
        if change.before is None:
            log.info("cron.installed", schedule=change.name, queue=change.after.queue)
        elif change.before.fingerprint != change.after.fingerprint:
            log.info("cron.changed", schedule=change.name, queue=change.after.queue)

    def _see_dispute(self, name: str, mark: TickMark | None, step: TickStep, print_: str) -> None:
        is_disputed = mark is not None and mark.fingerprint != print_ and not step.is_due
        if is_disputed and name not in self._disputed:
            log.warning(
                "cron.disputed", schedule=name, hint="another daemon has a different definition"
            )
        (self._disputed.add if is_disputed else self._disputed.discard)(name)

    def _see(self, problem: Exception | None) -> None:
        if isinstance(problem, OSError | StoreCorrupt) and not self._is_away:
            # Not an outage of the store, which is logged where the store is watched.
            log.error("cron.cannot_write", error=str(problem))
        self._is_away = problem is not None


def removal(name: str, mark: TickMark | None, installed: Installed, now_ms: int) -> _Planned:
    """Removes ticks whose time has not come, unless another daemon has a different definition."""
    if mark is None or mark.fingerprint != installed.fingerprint:
        # The store is not changed; only this daemon's record of the schedule ends.
        return _Planned(TickChange(name, mark, mark), "", None)
    span = Span(now_ms, FOREVER_MS)
    return _Planned(TickChange(name, mark, None, span), installed.fingerprint, None)


def make_offer(
    name: str,
    settings: ScheduleSettings,
    priority: int,
    print_: str,
    tick_ms: int,
    now_ms: int | None = None,
    due_ms: int | None = None,
) -> Offer:
    """A tick, as it is pushed."""
    data = encode_run(
        [settings.payload_bytes],
        queue=settings.queue,
        keys=[tick_key(name, print_, tick_ms)],
        flow=settings.flow,
        action=settings.action,
        priority=priority,
        due_ms=tick_ms if due_ms is None else due_ms,
        enqueued_ms=tick_ms if now_ms is None else now_ms,
        headers={**settings.headers, SCHEDULE_HEADER: name, TICK_HEADER: str(tick_ms)},
    )
    return Offer(Run(read_head(data), data))
