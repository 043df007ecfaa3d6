"""A consumer of a pull queue that settles some of what it leases, and remembers what it said."""

from pathlib import Path
from random import Random
from time import monotonic

from actors.model.slices import indexes, item_bits
from forebay import wire
from forebay.lease_frames import (
    LeasedRun,
    LeaseReport,
    Part,
    What,
    pack_settle,
    read_leased,
    read_statuses,
)
from forebay.link import Link, Lost
from forebay.run import Run, read_head
from forebay.wire import Kind
from tests.crash.destinations import Came
from tests.crash.found import Found
from tests.crash.producer import ANSWER_S, Died


class Consumer:
    """Of one queue. What it settles as delivered has come to it; the rest was only tried."""

    def __init__(self, rng: Random, queue: str) -> None:
        self._rng = rng
        self._queue = queue
        self._link: Link | None = None
        self._sequence = 0
        self._came = Came()
        self._out: set[str] = set()
        """What it has leased and not settled."""
        self._attempts: dict[str, int] = {}

    def connect(self, path: Path, before: Found) -> None:
        self._out.clear()
        self._attempts = {item: there.attempt for item, there in before.live.items()}
        try:
            self._link = Link(path, "crash test", monotonic() + ANSWER_S)
        except Lost as lost:
            raise Died from lost

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def look(self, before: Found) -> Came:
        came, self._came = self._came, Came()
        return came

    def work(self, *, is_thorough: bool) -> int:
        """Leases once, and settles; how many items there were. Thorough: all as delivered."""
        content = {"queue": self._queue, "items": self._rng.choice((1, 5, 50)), "wait_ms": 0}
        leases = read_leased(self._ask(Kind.LEASE, wire.pack_json(content)))
        reports: list[LeaseReport] = []
        delivered: list[set[str]] = []
        for lease in leases:
            items = self._take(lease)
            parts, good = self._decide(list(items), is_thorough=is_thorough)
            if parts:
                reports.append(LeaseReport(lease.token, parts))
                delivered.append(good)
                # It counts as delivered before the daemon hears of it.
                self._came.good |= {item: items[item] for item in good}
        if reports:
            body = self._ask(Kind.SETTLE, pack_settle(self._queue, reports))
            assert all(read_statuses(body)), "a lease was lost"
        return len(leases)

    def _take(self, lease: LeasedRun) -> dict[str, bytes]:
        run = Run(read_head(lease.run), lease.run)
        bits = lease.bits or item_bits(0, run.head.count)
        ids, payloads = run.item_ids(), run.payloads()
        items = {ids[index]: payloads[index] for index in indexes(bits)}
        for item in items:
            assert item not in self._came.good, f"{item} was delivered, and comes again"
            assert item not in self._out, f"{item} is leased, and comes again"
            assert lease.attempt == self._attempts.setdefault(item, 0), f"{item}: {lease.attempt}"
        self._came.tried |= items.keys()
        self._out |= items.keys()
        return items

    def _decide(self, items: list[str], *, is_thorough: bool) -> tuple[tuple[Part, ...], set[str]]:
        """What is said of a lease: of all of it, or of its first item and the rest; or nothing."""
        choice = 0.0 if is_thorough else self._rng.random()
        if choice > 0.9:
            return (), set()
        self._out -= set(items)
        if choice < 0.5 or len(items) == 1:
            return (Part(What.DELIVERED),), set(items)
        first, *others = items
        if choice < 0.6:
            return (Part(What.DELIVERED, 1), Part(What.RELEASED)), {first}
        delay_ms = self._rng.choice((0, 90_000))
        for item in others:
            self._attempts[item] += 1
        return (Part(What.DELIVERED, 1), Part(What.FAILED, 0, "no", delay_ms)), {first}

    def _ask(self, kind: Kind, body: bytes) -> bytes:
        assert self._link is not None
        self._sequence += 1
        try:
            self._link.send([wire.frame(kind, self._sequence, body)], monotonic() + ANSWER_S)
            while True:
                frames = self._link.receive(ANSWER_S)
                assert frames, "the daemon neither answers nor dies"
                for answer, sequence, content in frames:
                    if sequence == self._sequence:
                        if answer is Kind.ERROR:
                            raise wire.read_error(content)
                        return content
        except Lost as lost:
            raise Died from lost
