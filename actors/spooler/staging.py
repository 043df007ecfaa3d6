"""Staging: requests that change writes, judged in order, made durable together, then carried out.

A part of the spooler. Requests wait for the next commit. Each is judged on the state at that time
(actors/spooler/writes.py), and its record goes into the commit. When that is durable, the request
is carried out and answered: published stages join the backlog, dropped ones leave the ledger.
Requests about different stages of one write share a commit. Two about one stage, or one of them
about the whole write, do not: the second is judged after the first took effect.
"""

from typing import Any, Final, NamedTuple, assert_never

import structlog

from actors.model.books import Account, Totals
from actors.ports.journal import LiveRun, Record
from actors.ports.writes import Receipt, SealedStage, WritePart
from actors.spooler.backlog import Backlog
from actors.spooler.ledger import Ledger
from actors.spooler.messages import (
    Append,
    Apply,
    AskOpenWrites,
    AskParts,
    AskReceipt,
    AskWrite,
    DropStage,
    ListWrites,
    Reply,
    Seal,
    WriteQuestion,
    WriteRequest,
)
from actors.spooler.writes import Decision, Stage, Write, Writes
from forebay.errors import Refused
from forebay.ids import run_id_ms

log = structlog.get_logger()

RECORDS_GROWN_MIN: Final = 4096
"""With fewer records than this, rewriting the log does not pay."""


class DecidedWrite(NamedTuple):
    """A request that changes something and waits until its record is durable."""

    request: WriteRequest
    record: Record
    result: SealedStage | int | None


class Busy:
    """What requests of one commit are about."""

    def __init__(self) -> None:
        self._whole: set[bytes] = set()
        """Writes with a request about all of it."""
        self._parts: set[bytes] = set()
        """Writes with a request about a stage."""
        self._stages: set[tuple[bytes, bytes]] = set()

    def add(self, request: WriteRequest) -> None:
        if isinstance(request, Apply):
            self._whole.add(request.write)
        else:
            self._parts.add(request.write)
            self._stages.add((request.write, request.stage))

    def blocks(self, request: WriteRequest) -> bool:
        if request.write in self._whole:
            return True
        if isinstance(request, Apply):
            return request.write in self._parts
        return (request.write, request.stage) in self._stages


class Staging:
    def __init__(self, writes: Writes, ledger: Ledger, backlog: Backlog) -> None:
        self._writes = writes
        self._ledger = ledger
        self._backlog = backlog
        self._requests: list[WriteRequest] = []
        self._recorded = 0
        """Records since the log was last rewritten."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    def arrive(self, request: WriteRequest) -> None:
        self._requests.append(request)

    # Runs.

    def enter(self, append: Append, position: int, size: int, now_ms: int) -> None:
        """Enters a stored run that was staged."""
        head = append.head
        account = Account(head.queue, append.write, append.stage)
        self._ledger.stage(position, size, account, head.count)
        lane = (head.queue, head.priority)
        self._writes.add(append.write, append.stage, lane, position, size, head.count, now_ms)

    def recover(self, account: Account, live: LiveRun, now_ms: int) -> None:
        """Enters a staged run that recovery found, of a write that is still open. It counts as
        heard of when the run was made: a restart gives a write no more time."""
        self._ledger.note_account(live.position, live.account)
        lane = (account.queue, live.priority)
        heard_ms = min(now_ms, run_id_ms(live.run_id) or now_ms)
        self._writes.add(
            account.write, account.stage, lane, live.position, live.size, live.items, heard_ms
        )

    # Requests.

    def decide(self, now_ms: int) -> list[DecidedWrite]:
        """Answers requests that change nothing; returns as many others as fit into one commit."""
        decided: list[DecidedWrite] = []
        waiting: list[WriteRequest] = []
        busy = Busy()
        for request in self._requests:
            if busy.blocks(request):
                waiting.append(request)
                busy.add(request)
                continue
            decision = self._decision(request, now_ms)
            if isinstance(decision, Refused):
                request.reply.refuse(decision)
                continue
            if decision.record is None:
                _answer(request, decision.result)
                continue
            busy.add(request)
            decided.append(DecidedWrite(request, decision.record, decision.result))
        self._requests = waiting
        return decided

    def _decision(self, request: WriteRequest, now_ms: int) -> Decision | Refused:
        match request:
            case Seal(write, stage, runs, items):
                return self._writes.decide_seal(write, stage, runs, items, now_ms)
            case DropStage(write, stage, also_sealed):
                return self._writes.decide_drop(write, stage, now_ms, also_sealed=also_sealed)
            case Apply(verdict):
                return self._writes.decide_applied(verdict, now_ms)
            case _:
                assert_never(request)

    def conclude(self, decided: list[DecidedWrite], failure: Refused | None) -> set[str]:
        """Carries out and answers durable requests; returns the queues that got runs."""
        queues: set[str] = set()
        for request, record, result in decided:
            if failure is not None:
                request.reply.refuse(failure)
                continue
            self._recorded += 1
            gone = self._writes.apply(record)
            for stage in gone.visible:
                queues |= self._show(request.write, stage)
            for stage in gone.dropped:
                self._drop(stage)
            _answer(request, result)
        return queues

    @property
    def log_has_grown(self) -> bool:
        """Whether most of the record log is outdated, such as sealed stages that are published."""
        return self._recorded > max(RECORDS_GROWN_MIN, len(self._writes))

    def log_is_kept(self) -> None:
        """The log was rewritten."""
        self._recorded = 0

    def _show(self, write: bytes, stage: Stage) -> set[str]:
        for queue, items in stage.items.items():
            self._ledger.publish(write, queue, items)
        for (queue, priority), places in stage.lanes.items():
            for place in places.peek(len(places), 2**62):
                self._backlog.add_place(queue, priority, place)
        return set(stage.items)

    def _drop(self, stage: Stage) -> None:
        for (queue, _), places in stage.lanes.items():
            for place in places.peek(len(places), 2**62):
                self._ledger.unstage(queue, place)

    # Questions.

    def tell(self, ask: WriteQuestion) -> None:
        """Answers a question from the present state."""
        match ask:
            case AskReceipt():
                self._answer_receipt(ask)
            case ListWrites():
                ask.reply.put(self._writes.describe(ask.write, ask.limit, also_over=ask.all))
            case AskWrite():
                view = self._writes.view(ask.write, ask.stages, ask.app)
                if isinstance(view, Refused):
                    ask.reply.refuse(view)
                else:
                    ask.reply.put(view)
            case AskOpenWrites():
                ask.reply.put(self._writes.open_writes())
            case AskParts():
                moved = self._writes.moved if ask.also_moved else ()
                parts = [self._part(write) for write in dict.fromkeys((*ask.writes, *moved))]
                ask.reply.put([part for part in parts if part is not None])
            case _:
                assert_never(ask)

    def _part(self, write: bytes) -> WritePart | None:
        found = self._writes.published(write)
        if not self._writes.is_known(write):
            return None
        totals = self._ledger.receipts.get(write, Totals())
        published = found.items if found is not None else 0
        # Items that are accounted for nowhere were lost to disk damage: the receipt must not wait.
        unknown = max(0, published + self._ledger.moved[write] - totals.accepted)
        return WritePart(
            write,
            totals.delivered,
            totals.dropped,
            totals.deleted,
            totals.lost + unknown,
            is_over=totals.held == 0,
        )

    def _answer_receipt(self, ask: AskReceipt) -> None:
        """Counts what is here now: moved-in items are accepted here, moved-out items are not."""
        part = self._part(ask.write)
        if part is None:
            ask.reply.put(None)
            return
        found = self._writes.published(ask.write) or Write(
            heard_ms=self._writes.moved[ask.write],
            queues=tuple(sorted(self._ledger.queues_of(ask.write))),
        )
        moved_out = self._ledger.receipts.get(ask.write, Totals()).moved_out
        ask.reply.put(
            Receipt(
                write=ask.write,
                published_ms=found.heard_ms,
                app=found.app,
                version=found.version,
                queues=found.queues,
                accepted=found.items + self._ledger.moved[ask.write] - moved_out,
                delivered=part.delivered,
                dropped=part.dropped,
                deleted=part.deleted,
                lost=part.lost,
            )
        )

    def refuse_all(self, refused: Refused) -> None:
        """Refuses all waiting requests at the end."""
        requests, self._requests = self._requests, []
        for request in requests:
            request.reply.refuse(refused)


def _answer(request: WriteRequest, result: SealedStage | int | None) -> None:
    """Each kind of request has its kind of result (actors/spooler/writes.py)."""
    reply: Reply[Any] = request.reply
    reply.put(result)
