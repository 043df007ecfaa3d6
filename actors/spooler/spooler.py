"""The spooler owns the journal: nothing is acknowledged before it is on disk.

It receives `Append` from ingest and answers through the message's `Answers`; requests about staged
writes (actors/spooler/staging.py); `Take`, `Settle` and `GiveBack` from delivery, for which it
lends runs and records outcomes; and `Inquire` for the books.

A run is durable before its push is answered (`durability: fsync`). All runs that arrive during one
commit share the next one. Marks of deliveries are written with the next group or tick and synced
within a second: losing them only delivers again, with the same ids. Marks of drops are synced in
the group that causes them.

On `Drain` pushes that wait for room are refused with DRAINING; on `Finish` earlier messages are
still handled and the active chunk is sealed. On cancel the commit under way is finished, because a
thread cannot be stopped; recovery finds what it stored without an answer, and a client that repeats
the push is told that it is a duplicate.

It cannot tell a disk that hangs from a slow one. A commit has no deadline; pushes wait with it.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar, assert_never

import structlog
import trio

from actors.config.catalogue import Catalogue
from actors.config.settings import SpoolSettings
from actors.model.clock import steady_ms, wall_ms
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.runs import Origin, Place, StoredRun
from actors.ports.journal import Committed, Journal, Recovered
from actors.ports.thread import OwnThread
from actors.spooler.arrivals import Arrivals
from actors.spooler.backlog import Backlog
from actors.spooler.client import SpoolerClient
from actors.spooler.intake import DRAINING, Group, Intake, RecentRuns, answer
from actors.spooler.ledger import Ledger
from actors.spooler.lending import Lending, Loans, PendingMark
from actors.spooler.messages import (
    Append,
    Apply,
    AskOpenWrites,
    AskParts,
    AskReceipt,
    AskWrite,
    Borrow,
    Doubt,
    Drain,
    DropStage,
    FindRun,
    Finish,
    ForgetWrites,
    GiveBack,
    Inquire,
    ListWrites,
    Peek,
    Reply,
    ScanRuns,
    Seal,
    Settle,
    SpoolerMessage,
    Take,
    Tick,
    Voided,
)
from actors.spooler.reading import Peeking
from actors.spooler.recovery import Adoption
from actors.spooler.report import make_report
from actors.spooler.staging import Staging
from actors.spooler.upkeep import SpoolCounts, Upkeep
from actors.spooler.writes import Writes
from forebay.wire import Outcome

log = structlog.get_logger()

M = TypeVar("M", Peek, FindRun, ScanRuns)

INBOX: Final = 2048
TICK_S: Final = 0.1
MARKS_SYNC_S: Final = 1.0
MARKS_WAITING_MAX: Final = 256
"""More marks than this are written without waiting for a push."""
MARKS_UNWRITTEN_MAX: Final = 65536
"""While this many marks cannot be written, nothing more is lent: every queue is bounded."""
MESSAGES_MAX: Final = 4096
"""At most this many messages are handled before the next commit."""
PROGRESS_S: Final = 1.0
BUSY_S: Final = 0.05
"""How long after a group of pushes another group is expected."""
PINNED_S: Final = 5.0
PINNED_CHUNKS: Final = 4
"""How many chunks may stay on disk, however little they hold."""

assert MARKS_WAITING_MAX <= MARKS_UNWRITTEN_MAX


class Spooler:
    def __init__(
        self,
        settings: SpoolSettings,
        journal: Journal,
        catalogue: Catalogue,
        arrivals: Arrivals,
    ) -> None:
        self.settings = settings
        self._journal = journal
        self._sender, self._inbox = trio.open_memory_channel[SpoolerMessage](INBOX)
        self.client = SpoolerClient(self._sender)
        self.arrivals = arrivals
        self._thread = OwnThread("forebay-commit")
        reader = trio.Lock()
        self._nursery: trio.Nursery | None = None

        self.counts = SpoolCounts()
        """For the metrics to read."""
        self._writes = Writes()
        self._ledger = Ledger(self._writes)
        self._backlog = Backlog(settings.inmemory_runs, settings.inmemory_bytes)
        self._loans = Loans(self._ledger)
        self._intake = Intake(
            settings, catalogue.queue, self._ledger, self._backlog, self._writes, self.counts
        )
        self._staging = Staging(self._writes, self._ledger, self._backlog)
        self._adoption = Adoption(
            self._writes,
            self._ledger,
            self._backlog,
            self._loans,
            self._staging,
        )
        self._lending = Lending(
            journal, self._ledger, self._backlog, self._loans, reader, arrivals, self._wake
        )
        self._peeking = Peeking(journal, self._ledger, self._backlog, self._loans, reader)
        self._upkeep = Upkeep(
            journal,
            self._ledger,
            self._intake.recent.stored,
            settings.meta_sync_interval,
            settings.min_free_bytes,
            self.counts,
        )
        self._recordings: list[tuple[Reply[list[bool]], list[bool]]] = []
        """Replies that wait for outcomes to be durable, and which outcomes were accepted."""
        self._inquiries: list[Inquire] = []
        self._is_finishing = False
        self.has_disowned = False
        """The journal has let go of all disowned items: the cold store may have them."""
        self.finished = trio.Event()
        """Set when the journal is sealed."""
        self._marks_are_due = False
        self._has_unsynced_marks = False
        self._next_marks_sync = 0.0
        self._next_pinned = 0.0
        self._has_forgotten = False
        self._stored_at = -BUSY_S

    @property
    def recent(self) -> RecentRuns:
        """For actors that store runs elsewhere and must not store another one under a known id."""
        return self._intake.recent

    @property
    def disk_is_low(self) -> bool:
        """Whether new work is refused and nothing moves to other files on this disk."""
        return self._upkeep.disk_is_low

    @property
    def free_bytes(self) -> int:
        """Free space on the disk at the last look."""
        return self._upkeep.room.free_bytes

    @property
    def wants_the_disk(self) -> bool:
        """Whether pushes arrive and there is room for them: other disk work should wait."""
        has_room = 2 * self._ledger.live_bytes <= self.settings.max_bytes
        return has_room and trio.current_time() - self._stored_at < BUSY_S

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._thread.start()
        began = time.monotonic()
        recovered = await self._recover()
        self._adoption.adopt(recovered, began)
        self._intake.recent.update(recovered.recent)
        self._lending.ready.update(self._backlog.queues)
        if self._loans.marks:
            await self._commit()
        self.has_disowned = not self._loans.marks
        await self._keep_records()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tick)
                await nursery.start(self._upkeep.run)
                self._lend()
                task_status.started()
                await self._serve()
                nursery.cancel_scope.cancel()
        finally:
            await self._close()

    async def _recover(self) -> Recovered:
        said = time.monotonic()

        def progress(done: int, chunks: int) -> None:
            nonlocal said
            if time.monotonic() - said >= PROGRESS_S:
                said = time.monotonic()
                log.info("spooler.recovering", chunks_done=done, chunks=chunks)

        return await self._thread.call(self._journal.recover, self.settings.dedup_runs, progress)

    def disown(self, origins: Iterable[Origin]) -> None:
        """The cold store had items from there before the restart; call it before `run`."""
        self._adoption.disown(origins)

    def has_let_go(self, origin: Origin) -> bool:
        """Whether the cold store may keep what it took from there."""
        return self._adoption.has_let_go(origin)

    # The loop: messages in, one commit, then answers and leases out.

    async def _serve(self) -> None:
        while not self._is_finishing:
            self._handle(await self._inbox.receive())
            with suppress(trio.WouldBlock):
                for _ in range(MESSAGES_MAX):
                    self._handle(self._inbox.receive_nowait())
            if self._may_commit():
                await self._commit()
            while self._intake.has_arrivals() or self._staging:
                await self._commit()
            if self.disk_is_low and self._ledger.has_idle_chunk():
                # The space of an idle chunk is needed; it would wait for runs that are refused.
                self._enter(Group(), await self._thread.call(self._journal.seal))
            self._lend()
            self._answer_inquiries()
            if self._has_forgotten or self._staging.log_has_grown:
                await self._keep_records()

    def _may_commit(self) -> bool:
        """Whether a commit would have anything to do: most messages of delivery bring nothing."""
        if self._intake or self._loans.marks or self._loans.must_be_durable:
            return True
        self._marks_are_due = False
        return bool(self._staging) or self._has_unsynced_marks

    def _handle(self, message: SpoolerMessage) -> None:
        match message:
            case Append():
                self._intake.arrive(message)
            case Settle():
                self._settle(message)
            case Take():
                self._lending.take(message)
            case GiveBack():
                self._take_back(message)
            case Doubt():
                for position in message.positions:
                    self._ledger.doubt(position, -1 if message.is_over else 1)
            case Seal() | DropStage() | Apply():
                self._staging.arrive(message)
            case AskReceipt() | ListWrites() | AskWrite() | AskOpenWrites() | AskParts():
                self._staging.tell(message)
            case ForgetWrites():
                self._forget_writes(message)
            case Inquire():
                self._inquiries.append(message)
                self._marks_are_due = True
            case Peek():
                self._look(self._peeking.look, message)
            case Borrow():
                assert self._nursery is not None
                self._nursery.start_soon(self._lending.borrow, message)
            case FindRun():
                self._look(self._peeking.find, message)
            case ScanRuns():
                self._look(self._peeking.scan, message)
            case Tick():
                self._intake.expire(trio.current_time())
                self._lending.ready.update(self._backlog.wake_due(steady_ms()))
                self._marks_are_due = True
                self._tell_pinned()
            case Drain():
                self._intake.drain()
            case Finish():
                self._is_finishing = True
            case _:
                assert_never(message)

    def _look(self, look: Callable[[M], Awaitable[None]], message: M) -> None:
        """Answers a look at the journal in a task of its own. A look changes nothing, so a bug in
        it fails only the request that asked for it."""

        async def answer() -> None:
            try:
                await look(message)
            except Exception as problem:
                message.reply.refuse(INTERNAL_ERRORS.note(problem, "looking at the journal"))

        assert self._nursery is not None
        self._nursery.start_soon(answer)

    def _settle(self, message: Settle) -> None:
        accepted = [
            self._loans.void(outcome, self._backlog)
            if isinstance(outcome, Voided)
            else self._loans.settle(outcome)
            for outcome in message.outcomes
        ]
        if message.reply is not None:
            self._recordings.append((message.reply, accepted))
            self._loans.must_be_durable = True

    def _take_back(self, message: GiveBack) -> None:
        for lease in reversed(message.leases):
            run = self._loans.take_back(lease)
            if run is None:
                continue
            head = run.head
            wait_ms = message.not_before_ms - wall_ms()
            if wait_ms > 0:
                place = Place(run.position, run.size, head.count - lease.done.bit_count())
                # On the steady clock: setting the wall clock back must not lengthen the wait.
                again_ms = steady_ms() + wait_ms
                self._backlog.add_later(head.queue, head.priority, again_ms, place)
            else:
                self._backlog.give_back(run)
                self._lending.ready.add(head.queue)

    async def _commit(self) -> None:
        """Stores as many waiting pushes as allowed, and the marks with them."""
        self._intake.disk_is_low = self._upkeep.disk_is_low
        group = self._intake.form_group(trio.current_time())
        dropped_items = 0
        for dropped in group.dropped:
            dropped_items += self._lending.drop(dropped)
        if self.settings.durability == "memory":
            answer(group.appends, Outcome.STORED)
        must_sync = self._loans.must_be_durable or self._marks_must_be_synced()
        decided = self._staging.decide(wall_ms())
        if group.appends or group.dropped or self._marks_must_go() or must_sync or decided:
            marks = self._loans.take_marks()
            self._loans.must_be_durable = False
            committed = await self._thread.call(
                self._journal.commit,
                [(append.head, append.data) for append in group.appends],
                [pending.mark for pending in marks],
                durable=must_sync,
                stages=[append.stage for append in group.appends],
                records=[entry.record for entry in decided],
            )
            # Answer the clients first. The books can wait: no task reads them before the next
            # await.
            self._answer(group, committed)
            self._enter(group, committed)
            self.counts.dropped["drop_oldest"] += 0 if committed.failure else dropped_items
            self._enter_marks(marks, group, committed, durable=must_sync)
            self._lending.ready |= self._staging.conclude(decided, committed.records_failure)
        else:
            self._answer(group, Committed())

    def _answer(self, group: Group, committed: Committed) -> None:
        self._intake.settle_group(
            group, committed.fingerprints, committed.failure, trio.current_time()
        )

    def _marks_must_go(self) -> bool:
        waiting = len(self._loans.marks)
        due, self._marks_are_due = self._marks_are_due, False
        return waiting > MARKS_WAITING_MAX or (due and waiting > 0)

    def _marks_must_be_synced(self) -> bool:
        if not self._has_unsynced_marks or trio.current_time() < self._next_marks_sync:
            return False
        self._next_marks_sync = trio.current_time() + MARKS_SYNC_S
        self._has_unsynced_marks = False
        return True

    def _enter(self, group: Group, committed: Committed) -> None:
        """Enters stored runs into ledger and backlog."""
        self._count(committed)
        for number in committed.started:
            self._ledger.start(number)
        if group.appends:
            self._stored_at = trio.current_time()
        placed = zip(group.appends, committed.positions, committed.sizes, strict=False)
        now_ms = wall_ms()
        for append, position, size in placed:
            head = append.head
            if append.stage:
                self._staging.enter(append, position, size, now_ms)
                continue
            self._ledger.accept(position, size, head.queue, head.count)
            # A queue without takers would only keep others out of memory.
            is_wanted = self._lending.is_wanted(head.queue)
            run = StoredRun(position, size, head, append.data)
            self._backlog.add(run, in_memory=is_wanted)
            self._lending.ready.add(head.queue)
        for number in committed.sealed:
            self._ledger.seal(number)
        for number, error in committed.abandoned:
            log.error("spooler.chunk_abandoned", chunk=f"{number:016x}", error=str(error))
        if committed.sealed or committed.failure:
            self._upkeep.hurry()

    def _count(self, committed: Committed) -> None:
        counts = self.counts
        counts.flushes += 1
        counts.runs += len(committed.sizes)
        counts.bytes += sum(committed.sizes)
        counts.chunk_rotations += len(committed.started)
        counts.chunks_abandoned += len(committed.abandoned)

    def _enter_marks(
        self, marks: list[PendingMark], group: Group, committed: Committed, *, durable: bool
    ) -> None:
        """Books written marks; the others are written again with the next commit.

        A drop whose mark was not even begun is undone: the run that needed the room is not stored.
        """
        if committed.marks_failure is None:
            self._loans.written(marks)
            recordings, self._recordings = self._recordings, []
            for reply, accepted in recordings:
                reply.put(accepted)
            self._has_unsynced_marks = not durable and (self._has_unsynced_marks or bool(marks))
            return
        self._has_unsynced_marks = True
        self._loans.must_be_durable |= durable
        undone = group.dropped if committed.failure is not None else []
        self._loans.unwritten(marks, undone)
        for dropped in reversed(undone):
            self._backlog.undrop(dropped)
        if committed.failure is None:
            log.error("spooler.marks_not_written", error=str(committed.marks_failure))

    # Lending.

    def _lend(self) -> None:
        """Serves the takers of queues that may have new runs."""
        if len(self._loans.marks) >= MARKS_UNWRITTEN_MAX:
            return
        if self._nursery is not None:
            self._lending.lend(self._nursery)

    def _tell_pinned(self) -> None:
        """Asks dispatch to hand over old items that keep mostly empty chunks on disk."""
        if trio.current_time() < self._next_pinned:
            return
        self._next_pinned = trio.current_time() + PINNED_S
        for queue, positions in self._ledger.pinned(PINNED_CHUNKS * self.settings.chunk_size):
            self.arrivals.pin(queue, positions)

    # Writes that are over.

    def _forget_writes(self, message: ForgetWrites) -> None:
        gone = self._writes.forget(message.before_ms, self._ledger.writes_on_disk())
        if gone:
            self._ledger.forget_writes(gone)
        self._has_forgotten |= bool(gone)
        message.reply.put(gone)

    async def _keep_records(self) -> None:
        """Rewrites the record log with only what must be remembered."""
        records = self._writes.records()
        if not records and not self._has_forgotten:
            return
        self._has_forgotten = False
        self._staging.log_is_kept()
        try:
            await self._thread.call(self._journal.keep_records, records)
        except OSError as error:
            log.error("spooler.records_not_kept", error=str(error))

    # Time, the books, and the end.

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self._wake()

    def _wake(self) -> None:
        # A full inbox is read anyway; a closed one means that the spooler ends.
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            self._sender.send_nowait(Tick())

    def _answer_inquiries(self) -> None:
        inquiries, self._inquiries = self._inquiries, []
        for inquiry in inquiries:
            room = self._upkeep.room
            inquiry.reply.put(
                make_report(self._ledger, self._backlog, self._loans, room, self.settings)
            )

    async def _close(self) -> None:
        """Refuses what waits, writes the last marks and seals the journal."""
        self._intake.drain()
        self._staging.refuse_all(DRAINING)
        self._inbox.close()
        marks = [pending.mark for pending in self._loans.take_marks()]
        try:
            committed = await self._thread.call(self._journal.commit, [], marks, durable=True)
            if committed.marks_failure is not None:
                log.error("spooler.marks_not_written", error=str(committed.marks_failure))
            await self._thread.call(self._journal.close)
            base, recent = self._ledger.base, self._intake.recent.stored()
            await self._thread.call(self._journal.free, [], base, recent)
        except OSError as error:
            log.error("spooler.not_sealed", error=str(error))
        self._thread.stop()
        self.finished.set()
