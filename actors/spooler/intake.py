"""The intake: pushes that wait to be stored, and the choice of the next group.

Pushes are taken in order of arrival. If the spool is full, the queue's policy decides; pushes that
wait for room form one line and wait at most their queue's `full_timeout`. A run with a known id is
not stored again: it is a duplicate if its content is the same, and refused otherwise. Plain data of
the spooler's task.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Literal

import structlog
from crc32c import crc32c

from actors.config.queue import QueueSettings
from actors.config.settings import SpoolSettings
from actors.model.refusals import other_content
from actors.model.units import format_size
from actors.spooler.backlog import Backlog, Dropped
from actors.spooler.ledger import Ledger
from actors.spooler.messages import Answers, Append
from actors.spooler.upkeep import SpoolCounts
from actors.spooler.writes import Writes
from forebay.column import Buffer
from forebay.errors import Refused
from forebay.run import RunHead
from forebay.stage_frames import WRITE_HEADER, write_of
from forebay.wire import Outcome


def fingerprint(head: RunHead, data: Buffer) -> int:
    """A CRC-32C of the queue's name and the body.

    The rest of the header is left out. A repeated push over HTTP is encoded anew with another time,
    and a run that moves to another daemon may have another attempt.
    """
    return crc32c(memoryview(data)[head.head_bytes :], crc32c(head.queue.encode()))


class RecentRuns:
    """Remembers the last `runs_max` runs, in order of arrival."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._under_way: set[bytes] = set()

    def __contains__(self, run_id: bytes) -> bool:
        return run_id in self._known or run_id in self._under_way

    def stored(self) -> dict[bytes, int]:
        """Ids and fingerprints of the stored runs, oldest first.

        Runs whose commit is under way are left out: if they were remembered and then not stored, a
        client that sends them again would be told that they are duplicates.
        """
        return dict(self._known)

    def is_another(self, head: RunHead, data: Buffer) -> bool:
        """Whether a run with other content was stored under this id."""
        known = self._known.get(head.run_id)
        return known is not None and known != fingerprint(head, data)

    def begin(self, run_id: bytes) -> None:
        """The run is being stored."""
        if self._runs_max:
            self._under_way.add(run_id)

    def add(self, run_id: bytes, content: int) -> None:
        """The run is stored; `content` is its fingerprint."""
        self._under_way.discard(run_id)
        if self._runs_max:
            self._known[run_id] = content
            if len(self._known) > self._runs_max:
                self._known.popitem(last=False)

    def discard(self, run_id: bytes) -> None:
        """The run was not stored after all."""
        self._under_way.discard(run_id)

    def update(self, found: Mapping[bytes, int]) -> None:
        """Adds the runs that recovery found."""
        for run_id, content in found.items():
            self.add(run_id, content)


FullPolicy = Literal["block", "drop_newest", "drop_oldest"]

PINNED_FACTOR = 2
"""The chunks may take this many times `max_bytes` on disk while old items keep them alive."""


class Verdict(Enum):
    STORE = auto()
    WAIT = auto()
    DROP_OLDEST = auto()


@dataclass(frozen=True, slots=True)
class Fill:
    """How full the spool is."""

    live_runs: int
    live_bytes: int
    disk_bytes: int
    disk_is_low: bool
    """Less than `min_free_bytes` is left on the file system."""


def admit(fill: Fill, size: int, policy: FullPolicy, settings: SpoolSettings) -> Verdict | Refused:
    """A full disk refuses at once, whatever the policy; a full spool follows the policy.

    If old items keep the chunks alive, dropping other runs would free nothing, so the push waits.
    """
    if fill.disk_is_low:
        text = f"less than min_free_bytes ({format_size(settings.min_free_bytes)}) of disk is left"
        return Refused("DISK_FULL", text, retry_after_ms=1000)
    pinned = fill.disk_bytes + size > PINNED_FACTOR * settings.max_bytes
    limit = _limit_reached(fill, size, settings)
    if limit is None and not pinned:
        return Verdict.STORE
    if policy == "drop_newest":
        took = f"its chunks, kept alive by old items, take {format_size(fill.disk_bytes)} on disk"
        return full(limit or took)
    if policy == "drop_oldest" and not pinned:
        return Verdict.DROP_OLDEST
    return Verdict.WAIT


def full(limit: str) -> Refused:
    return Refused("QUEUE_FULL", f"the spool is full: {limit}", retry_after_ms=1000)


def _limit_reached(fill: Fill, size: int, settings: SpoolSettings) -> str | None:
    if settings.max_size and fill.live_runs >= settings.max_size:
        return f"spool.max_size is {settings.max_size} runs"
    if fill.live_bytes + size > settings.max_bytes:
        return f"spool.max_bytes is {format_size(settings.max_bytes)}"
    return None


log = structlog.get_logger()

DRAINING: Final = Refused("DRAINING", "the daemon is stopping", retry_after_ms=1000)
DROPS_MAX: Final = 16_384
"""At most this many runs are dropped to make room for one."""
QUEUES_MAX: Final = 10_000
"""Pushing creates no more queues once there are this many."""


@dataclass(slots=True)
class Group:
    """The contents of one commit."""

    appends: list[Append] = field(default_factory=list)
    size: int = 0
    echoes: list[Append] = field(default_factory=list)
    """Runs whose id is known already: answered once their originals are certainly stored."""
    dropped: list[Dropped] = field(default_factory=list)
    dropped_bytes: int = 0


class Intake:
    def __init__(
        self,
        settings: SpoolSettings,
        queue_settings: Callable[[str], QueueSettings | None],
        ledger: Ledger,
        backlog: Backlog,
        writes: Writes,
        counts: SpoolCounts | None = None,
    ) -> None:
        self._counts = counts if counts is not None else SpoolCounts()
        self._writes = writes
        self._settings = settings
        self._queue_settings = queue_settings
        self._ledger = ledger
        self._backlog = backlog
        self.recent = RecentRuns(settings.dedup_runs)
        self._arrived: deque[Append] = deque()
        self._blocked: deque[tuple[Append, float]] = deque()
        """Pushes that wait for room, and until when."""
        self._is_draining = False
        self.disk_is_low = False
        self.disk_failure: Refused | None = None
        """Set after the disk refused; it is not tried again before `_disk_rests_until`."""
        self._disk_rests_until = 0.0

    def arrive(self, append: Append) -> None:
        self._arrived.append(append)

    def __bool__(self) -> bool:
        """Whether any push waits, also for room."""
        return bool(self._arrived or self._blocked)

    def has_arrivals(self) -> bool:
        return bool(self._arrived)

    def form_group(self, now: float) -> Group:
        """Takes as many pushes as may be stored now, in order; refuses those that must be."""
        group = Group()
        while self._blocked and group.size < self._settings.group_bytes_max:
            if not self._place(self._blocked[0][0], group, now, others_wait=False):
                break
            self._blocked.popleft()
        while self._arrived and group.size < self._settings.group_bytes_max:
            append = self._arrived.popleft()
            if not self._place(append, group, now, others_wait=bool(self._blocked)):
                queue = self._queue_settings(append.head.queue)
                self._blocked.append((append, now + (queue.full_timeout if queue else 0)))
        return group

    def _place(self, append: Append, group: Group, now: float, *, others_wait: bool) -> bool:
        """Puts a push into the group or refuses it; False: it must wait."""
        head = append.head
        queue = self._queue_settings(head.queue)
        if head.run_id in self.recent:
            group.echoes.append(append)
            return True
        if queue is None or self._is_one_queue_too_many(head.queue):
            text = f"there is no queue {head.queue!r}, and none is created for it"
            self._turn_away([append], Refused("UNKNOWN_QUEUE", text))
            return True
        if over := self._refuse_stage(append):
            self._turn_away([append], over)
            return True
        if self.disk_failure is not None and now < self._disk_rests_until:
            self._turn_away([append], self.disk_failure)
            return True
        if others_wait and queue.full_policy == "block":
            return False
        size = len(append.data)
        verdict = admit(self._fill(group), size, queue.full_policy, self._settings)
        if verdict is Verdict.DROP_OLDEST:
            verdict = self._make_room(head.queue, size, group)
        if verdict is Verdict.WAIT and self._is_draining:
            verdict = DRAINING
        if isinstance(verdict, Refused):
            self._turn_away([append], verdict)
        elif verdict is Verdict.STORE:
            self.recent.begin(head.run_id)
            group.appends.append(append)
            group.size += size
        return verdict is not Verdict.WAIT

    def _refuse_stage(self, append: Append) -> Refused | None:
        if append.stage:
            return self._writes.refuse(append.write, append.stage)
        if write_of(append.head) is not None:
            # The write's receipt would count items that were never published.
            return Refused("BAD_RUN", f"a run with the header {WRITE_HEADER} is staged, not pushed")
        return None

    def _make_room(self, queue: str, size: int, group: Group) -> Verdict | Refused:
        """Drops the queue's oldest runs until there is room; none at all if that is not enough."""
        dropped: list[Dropped] = []
        verdict: Verdict | Refused = Verdict.DROP_OLDEST
        while verdict is Verdict.DROP_OLDEST:
            oldest = self._backlog.drop_oldest(queue) if len(dropped) < DROPS_MAX else None
            if oldest is None:
                verdict = Verdict.WAIT
                break
            dropped.append(oldest)
            group.dropped.append(oldest)
            group.dropped_bytes += oldest.place.size
            verdict = admit(self._fill(group), size, "drop_oldest", self._settings)
        if verdict is not Verdict.STORE:
            for entry in reversed(dropped):
                self._backlog.undrop(entry)
                group.dropped.pop()
                group.dropped_bytes -= entry.place.size
        return verdict

    def _is_one_queue_too_many(self, queue: str) -> bool:
        """Queue names are kept in memory, so their number is bounded."""
        books, staged = self._ledger.books, self._ledger.staged
        if queue in books or queue in staged or len(books) + len(staged) < QUEUES_MAX:
            return False
        return len(books.keys() | staged.keys()) >= QUEUES_MAX

    def _fill(self, group: Group) -> Fill:
        return Fill(
            live_runs=self._ledger.live_runs + len(group.appends) - len(group.dropped),
            live_bytes=self._ledger.live_bytes + group.size - group.dropped_bytes,
            disk_bytes=self._ledger.disk_bytes + group.size,
            disk_is_low=self.disk_is_low,
        )

    def settle_group(
        self, group: Group, fingerprints: Sequence[int], failure: Refused | None, now: float
    ) -> None:
        """Answers every push of a group. The first `len(fingerprints)` runs are durable."""
        stored = len(fingerprints)
        for append, content in zip(group.appends, fingerprints, strict=False):
            self.recent.add(append.head.run_id, content)
        if self._settings.durability != "memory":
            answer(group.appends[:stored], Outcome.STORED)
        if failure is not None:
            self._refuse(group.appends[stored:], failure, now)
        elif group.appends:
            self.disk_failure = None
        for echo in group.echoes:
            if self.recent.is_another(echo.head, echo.data):
                self._turn_away([echo], other_content(echo.head.run_id))
            elif echo.head.run_id in self.recent:
                self._ledger.count_duplicate(echo.head.queue, echo.head.count)
                answer([echo], Outcome.DUPLICATE)
            else:
                self._turn_away([echo], self.disk_failure or full("try again"))

    def _refuse(self, appends: Sequence[Append], failure: Refused, now: float) -> None:
        if self.disk_failure is None:
            log.error("spooler.disk_refuses", code=failure.code, error=failure.text)
        self.disk_failure = failure
        self._disk_rests_until = now + failure.retry_after_ms / 1000
        for append in appends:
            self.recent.discard(append.head.run_id)
        if self._settings.durability != "memory":
            self._turn_away(appends, failure)

    def _turn_away(self, appends: Sequence[Append], why: Refused) -> None:
        if appends:
            self._counts.refused[why.code] += sum(append.head.count for append in appends)
            answer(appends, why)

    def expire(self, now: float) -> None:
        """Refuses pushes that have waited for room long enough."""
        expired = [append for append, until in self._blocked if until <= now]
        if expired:
            self._blocked = deque(entry for entry in self._blocked if entry[1] > now)
            self._turn_away(expired, full("no room came free within the queue's full_timeout"))

    def drain(self) -> None:
        """Refuses all pushes that wait for room, now and later."""
        self._is_draining = True
        self._turn_away([append for append, _ in self._blocked], DRAINING)
        self._blocked.clear()


def answer(appends: Sequence[Append], outcome: Outcome | Refused) -> None:
    """Gives all of them the same answer and lets each connection send once."""
    connections: dict[int, Answers] = {}
    for append in appends:
        append.answers.put(append.sequence, outcome)
        connections[id(append.answers)] = append.answers
    for connection in connections.values():
        connection.flush()
