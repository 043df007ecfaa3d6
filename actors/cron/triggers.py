"""Triggers of type QUEUE: poll a queue, claim a batch of its items, and make one job of the batch.

This actor owns the book of triggers (actors/config/book.py) and the holds on their queues:
a trigger's queue is in stream mode (actors/tiers/streams.py), so that all its items are in the cold
store and no worker takes them. The cold store knows which job has claimed which items
(actors/ports/trigger_jobs.py): a job and its claim are made in one transaction, and end in one.
What their end means for the trigger, and jobs that are overdue, are looked after by `Jobs`
(actors/cron/trigger_jobs.py). A lease in the cold store lets one daemon at a time run a trigger.

A trigger fails when one of its queues does not exist, when the store's data for it is damaged, when
one of its jobs is dead or unreadable, or when a job is not done at the end of its lease. The
failure is logged and reported, and the trigger waits, longer each time. While the store is away
nothing happens and nothing counts as failed.

While the daemon drains nothing more is claimed, but jobs still end. On cancel the store completes a
step that has begun, and leases are given up; the restarted daemon continues from the store. Jobs of
deleted triggers are ended here as well.

It cannot know what a job did to which item.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

import structlog
import trio

from actors.config.book import Book, Kept, Keys
from actors.config.triggers import (
    CIRCLE,
    TRIGGER,
    Hold,
    KeptTriggers,
    QueueTrigger,
    in_circles,
)
from actors.cron.trigger_jobs import Jobs
from actors.cron.trigger_ports import TriggerPorts
from actors.cron.trigger_watch import (
    LEASE_S,
    LOOK_S,
    Watch,
    backoff_s,
    next_look_s,
)
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import bad_request, conflict, draining
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from actors.ports.trigger_jobs import (
    JOBS_PAGE,
    TRIGGER_CONSUMER,
    Claim,
    Poll,
    Polled,
    TriggerJob,
    TriggerStore,
)
from forebay.errors import Refused
from forebay.ids import new_run_id

assert 2 * LOOK_S < LEASE_S


log = structlog.get_logger()

AWAY_PAUSE_S: Final = 5.0
LET_GO_S: Final = 2.0
"""For giving leases up at the end; after that they expire."""


class Triggers:
    def __init__(
        self,
        configured: Mapping[str, QueueTrigger],
        kept: Kept[KeptTriggers],
        check: Callable[[QueueTrigger], int],
        store: TriggerStore,
        daemon: bytes,
        ports: TriggerPorts,
    ) -> None:
        """`check` returns the priority of a trigger's jobs, and raises Refused if one of its queues
        or its priority does not exist. `daemon`: the owner of these leases; the same after a
        restart."""
        self._kept = kept
        self._check = check
        self.book = Book(
            TRIGGER,
            configured,
            kept.value.triggers,
            lambda triggers: kept.save(replace(kept.value, triggers=triggers)),
            self._check_new,
        )
        self._in_circles = in_circles(self.book.definitions)
        self._store = store
        self._daemon = daemon
        self._ports = ports
        self._changing = trio.Lock()
        self._woken = trio.Event()
        self._watches: dict[str, Watch] = {}
        self._jobs = Jobs(self.book, store, ports, self._is_ours, self._succeed, self._fail)
        store.watch(self._jobs)
        self._is_away = False
        self._is_draining = False
        self.jobs_total = 0
        self.items_total = 0
        self.failed_total = 0

    def watch(self, name: str) -> Watch:
        return self._watches.get(name) or Watch()

    def jobs(self, name: str, limit: int = JOBS_PAGE) -> list[TriggerJob]:
        """The oldest unfinished jobs, as last seen."""
        of_name = (job for job in self._jobs.live.values() if job.trigger == name)
        return list(islice(of_name, limit))

    def jobs_by_name(self) -> Counter[str]:
        """The number of unfinished jobs per trigger."""
        return Counter(job.trigger for job in self._jobs.live.values())

    def _is_ours(self, name: str) -> bool:
        return self.watch(name).is_ours

    def figures(self) -> dict[str, int]:
        return {
            "triggers": len(self.book.definitions),
            "jobs": len(self._jobs.live),
            "jobs_total": self.jobs_total,
            "items_total": self.items_total,
            "failed_total": self.failed_total,
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The first look comes before anything is delivered, so that queues are held by then."""
        try:
            await self.look()
            task_status.started()
            while True:
                with trio.move_on_after(self._pause_s()):
                    await self._woken.wait()
                self._woken = trio.Event()
                await self.look()
        finally:
            await self._let_all_go()

    def _pause_s(self) -> float:
        if self._is_away:
            return AWAY_PAUSE_S
        looks = [watch.look_at for watch in self._watches.values()]
        return max(0.0, min([self._jobs.due_at, *looks]) - trio.current_time())

    async def _let_all_go(self) -> None:
        with trio.move_on_after(LET_GO_S, shield=True), suppress(StoreUnavailable, StoreCorrupt):
            for name, watch in list(self._watches.items()):
                if watch.is_ours:
                    await self._store.let_go(name, self._daemon)

    def drain(self) -> None:
        """The daemon is stopping: its workers would not begin a job made from now on."""
        self._is_draining = True

    # Requests of operators. The book is changed durably first.

    async def add(self, name: str, keys: Keys) -> None:
        async with self._changing:
            await self.book.add(name, keys)
        await self._look_at_once(name)

    async def change(self, name: str, keys: Keys) -> None:
        async with self._changing:
            await self.book.change(name, keys)
        await self._look_at_once(name)

    async def remove(self, name: str) -> None:
        """Unfinished jobs keep what they have claimed."""
        async with self._changing:
            await self.book.remove(name)
        await self._look_at_once(name)

    async def run_now(self, name: str) -> TriggerJob | None:
        """Polls at once, even if the trigger is disabled; None: there was nothing to claim, or no
        more jobs are allowed. May raise StoreUnavailable."""
        if self._is_draining:
            raise draining()
        async with self._changing:
            trigger = self.book.find(name)
            priority = self._check_usable(name, trigger)
            watch = self._watches.setdefault(name, Watch())
            await self._hold(name, trigger, watch)
            await self._ports.clear(trigger.queue)
            polled = await self._poll(name, trigger, priority, is_forced=True)
        if not polled.is_ours:
            raise conflict(f"another daemon runs {name}: ask that one")
        self._woken.set()
        return polled.made

    async def pause(self, name: str, *, is_paused: bool) -> None:
        """Pauses or resumes it for all daemons, durably."""
        async with self._changing:
            self.book.find(name)
            await self._store.pause(name, is_paused=is_paused)
            self._watches.setdefault(name, Watch()).is_paused = is_paused
        await self._look_at_once(name)

    async def reload(self, configured: Mapping[str, QueueTrigger]) -> None:
        async with self._changing:
            self.book.reload(configured)
            self._in_circles = in_circles(self.book.definitions)
            for watch in self._watches.values():
                watch.look_at = watch.poll_at = 0.0
                watch.is_held = False
        self._woken.set()

    def _check_new(self, name: str, trigger: QueueTrigger) -> None:
        self._check(trigger)
        circle = in_circles({**self.book.definitions, name: trigger})
        if name in circle:
            raise bad_request(f"{name}: {CIRCLE}: {', '.join(sorted(circle))}")

    def _check_usable(self, name: str, trigger: QueueTrigger) -> int:
        """The priority of its jobs; raises Refused if it cannot make any. A trigger made at run
        time may form a circle with triggers that were configured later."""
        if name in self._in_circles:
            raise conflict(f"{CIRCLE}: {', '.join(sorted(self._in_circles))}")
        return self._check(trigger)

    async def _note_held(self, held: frozenset[Hold]) -> None:
        await self._kept.save(replace(self._kept.value, held=held))

    async def _look_at_once(self, name: str) -> None:
        self._in_circles = in_circles(self.book.definitions)
        # Earlier failures do not count: the definition may have changed.
        before = self.watch(name)
        self._watches[name] = Watch(is_ours=before.is_ours, is_paused=before.is_paused)
        await self.look()
        # The looking task must wake up at another time now.
        self._woken.set()

    # Looking.

    async def look(self) -> None:
        """Takes overdue jobs back, and polls the queues of all triggers that are due."""
        async with self._changing:
            try:
                # First what needs no file: a full disk must drain.
                await self._jobs.look()
                await self._forget_old()
                for name in self._due_names():
                    await self._look_at(name)
            except (StoreUnavailable, StoreCorrupt, OSError) as problem:
                self._see(problem)
            except Exception as problem:
                # Without new jobs the daemon can still deliver; an error here must not stop it.
                if not self._is_away:
                    INTERNAL_ERRORS.note(problem, "triggers")
                self._is_away = True
            else:
                self._see(None)

    async def _forget_old(self) -> None:
        """Releases queues whose trigger is gone or has another queue now."""
        triggers = self.book.definitions
        wanted = frozenset(Hold(trigger.queue, name) for name, trigger in triggers.items())
        for hold in sorted(self._kept.value.held - wanted):
            await self._ports.drop(hold.queue, TRIGGER_CONSUMER + hold.name)
            await self._note_held(self._kept.value.held - {hold})
            self._ports.has_come(hold.queue)
        for name in self._watches.keys() - triggers.keys():
            if self._watches[name].is_ours:
                await self._store.let_go(name, self._daemon)
            del self._watches[name]

    def _due_names(self) -> list[str]:
        now = trio.current_time()
        for name in self.book.definitions:
            self._watches.setdefault(name, Watch())
        return sorted(name for name in self.book.definitions if self._watches[name].look_at <= now)

    async def _look_at(self, name: str) -> None:
        watch = self._watches[name]
        try:
            await self._step(name, self.book.find(name), watch)
        except (Refused, StoreCorrupt) as problem:
            # A problem with one trigger must not delay the others.
            if trio.current_time() >= watch.poll_at:
                text = problem.text if isinstance(problem, Refused) else str(problem)
                self._fail(name, text)
            watch.look_at = watch.poll_at
        except (StoreUnavailable, OSError):
            raise
        except Exception as problem:
            self._fail(name, INTERNAL_ERRORS.note(problem, "triggers", trigger=name).text)
            watch.look_at = watch.poll_at

    async def _step(self, name: str, trigger: QueueTrigger, watch: Watch) -> None:
        priority = self._check_usable(name, trigger)
        await self._hold(name, trigger, watch)
        if not trigger.enabled:
            # Another daemon may have it enabled and needs the lease.
            if watch.is_ours:
                await self._store.let_go(name, self._daemon)
                watch.is_ours = False
            watch.look_at = trio.current_time() + LOOK_S
            return
        backing_off_s = watch.poll_at - trio.current_time()
        is_claiming = backing_off_s <= 0 and not self._is_draining
        polled = await self._poll(name, trigger, priority if is_claiming else None)
        if polled.is_ours and is_claiming:
            # Items that were on their way to workers when the trigger came are found next time.
            await self._ports.clear(trigger.queue)
        watch.look_at = trio.current_time() + next_look_s(polled, backing_off_s)

    async def _hold(self, name: str, trigger: QueueTrigger, watch: Watch) -> None:
        if not watch.is_held:
            # Recorded before, so that it is released in any case; all queues in one write.
            all_ = {Hold(each.queue, other) for other, each in self.book.definitions.items()}
            await self._note_held(self._kept.value.held | all_)
            await self._ports.hold(trigger.queue, TRIGGER_CONSUMER + name)
            watch.is_held = True

    async def _poll(
        self, name: str, trigger: QueueTrigger, priority: int | None, *, is_forced: bool = False
    ) -> Polled:
        """`priority`: of the job; None: claim nothing."""
        claim = None if priority is None else self._claim(trigger, priority)
        interval_ms = round(trigger.polling_interval * 1000)
        poll = Poll(name, self._daemon, LEASE_S, interval_ms, claim, is_forced)
        polled = await self._store.poll(poll)
        watch = self._watches[name]
        if polled.is_ours and not watch.is_ours:
            # From now on this daemon looks after its jobs.
            self._jobs.look_soon()
        watch.is_ours, watch.is_paused = polled.is_ours, polled.is_paused
        if polled.made is not None:
            made = watch.last_job = polled.made
            self._jobs.made(made)
            self.jobs_total += 1
            self.items_total += made.items
            log.debug("triggers.job_made", trigger=name, job=made.id, items=made.items)
            self._ports.has_come(made.target)
        return polled

    def _claim(self, trigger: QueueTrigger, priority: int) -> Claim | None:
        except_flows = self._ports.except_flows(trigger.queue)
        if except_flows is None:
            return None
        return Claim(
            trigger.queue,
            trigger.target,
            trigger.batch_size,
            trigger.jobs_max,
            priority,
            new_run_id(),
            trigger.flow,
            trigger.action,
            trigger.headers,
            except_flows,
        )

    def _succeed(self, name: str) -> None:
        """One of its jobs is done."""
        watch = self._watches.get(name)
        if watch is not None:
            watch.failures, watch.error, watch.poll_at = 0, "", 0.0

    def _fail(self, name: str, error: str) -> None:
        trigger, watch = self.book.definitions.get(name), self._watches.get(name)
        if trigger is None or watch is None:
            # The trigger is gone, but its jobs are not.
            return
        watch.failures += 1
        watch.error = error
        wait_s = backoff_s(trigger.polling_interval, watch.failures)
        watch.poll_at = trio.current_time() + wait_s
        self.failed_total += 1
        log.warning(
            "triggers.failed", trigger=name, error=error, failures=watch.failures, wait_s=wait_s
        )
        self._ports.failed(name, trigger.queue, error)

    def _see(self, problem: Exception | None) -> None:
        if isinstance(problem, OSError | StoreCorrupt) and not self._is_away:
            # Not an outage of the store, which is logged where the store is watched.
            log.error("triggers.cannot_write", error=str(problem))
        self._is_away = problem is not None
