"""The load: a client that pushes runs with known payloads and remembers what it was told.

It keeps a window of pushes in flight, and sends what was not answered before the daemon died
again to the next one, the same bytes, first. A push that is refused because the spool is full is
forgotten: it must never be seen anywhere.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, time
from typing import Any, Final

from forebay import wire
from forebay.errors import Refused
from forebay.ids import format_item_id
from forebay.link import Link, Lost
from forebay.run import encode_run
from forebay.wire import Kind, Outcome
from tests.eventually import at_once, eventually_sync

ANSWER_S: Final = 60.0
"""A daemon that says nothing for so long hangs."""
REFUSALS_MAX: Final = 30
DELAY_MS_MAX: Final = 100
FAR_MS: Final = 70_000
STATS_MAX: Final = 2000
PRIORITIES: Final = (0, 5, 5, 5, 10)


@dataclass(frozen=True, slots=True)
class Sent:
    """A run, and its items by id."""

    run_id: bytes
    queue: str
    data: bytes
    items: dict[str, bytes]


class Died(Exception):
    """The daemon is no more."""


class Producer:
    def __init__(
        self,
        rng: Random,
        queues: tuple[str, ...],
        may_refuse: tuple[str, ...] = ("QUEUE_FULL",),
        share_far: float = 0.0,
    ) -> None:
        """`share_far` of the runs are due in more than a minute."""
        self._rng = rng
        self._queues = queues
        self._may_refuse = may_refuse
        self._share_far = share_far
        self._made = 0
        self._link: Link | None = None
        self._sequence = 0
        self._clock_ahead_ms = 0
        self._in_flight: dict[int, Sent] = {}
        self._again: deque[Sent] = deque()
        """Sent to a daemon that died before it answered."""
        self.payloads: dict[str, bytes] = {}
        """Of every item that was ever sent, but for those that were refused."""
        self.queue_of: dict[str, str] = {}
        self.acked: set[str] = set()
        self.refused: set[str] = set()
        self.sent_now: set[str] = set()
        """Items that were sent to the daemon of this life."""
        self.refusals_now = 0
        self.on_new: Callable[[Sent], None] = lambda _: None
        """Called with each run that the daemon stores or refuses as one that it doesn't hold."""

    @property
    def unanswered(self) -> int:
        return len(self._in_flight) + len(self._again)

    def connect(self, path: Path, clock_ahead_s: int = 0) -> None:
        """Returns when the daemon has recovered and says hello."""
        self._clock_ahead_ms = clock_ahead_s * 1000
        self.sent_now = set()
        self.refusals_now = 0
        self._again = deque([*self._in_flight.values(), *self._again])
        self._in_flight.clear()
        try:
            self._link = Link(path, "crash test", monotonic() + ANSWER_S)
        except Lost as lost:
            raise Died from lost

    def close(self) -> None:
        """Takes the answers that came before the end, and lets go of the connection."""
        link, self._link = self._link, None
        if link is not None:
            try:
                while frames := link.receive(0):
                    self._take(frames)
            except Lost:
                pass
            link.close()

    def push(self, runs: int, window: int) -> None:
        """Sends so many runs, those again that were not answered first. Died if the daemon dies.

        Ends early if the spool is full and refuses one after the other.
        """
        for _ in range(runs):
            while len(self._in_flight) >= window:
                self._receive()
            if self.refusals_now > REFUSALS_MAX:
                break
            sent = self._again.popleft() if self._again else self._make()
            self._sequence += 1
            self._in_flight[self._sequence] = sent
            self.sent_now.update(sent.items)
            head = wire.frame_head(Kind.PUSH, self._sequence, len(sent.data))
            self._send([head, sent.data])

    def settle(self) -> None:
        """Returns when everything is answered."""
        while self.unanswered:
            self.refusals_now = 0
            self.push(len(self._again), window=64)
            while self._in_flight:
                self._receive()

    def stats(self) -> dict[str, Any]:
        """The report of a daemon; answers to pushes that come meanwhile are taken as well."""
        self._sequence += 1
        asked = self._sequence
        self._send([wire.frame(Kind.STATS, asked)])
        while True:
            for kind, sequence, body in self._receive():
                if kind is Kind.REPORT and sequence == asked:
                    return wire.read_json(body)

    def ask(self, request: dict[str, Any]) -> None:
        """A CONTROL that is answered, or the end of the daemon."""
        self._sequence += 1
        asked = self._sequence
        self._send([wire.document(Kind.CONTROL, asked, request)])
        while True:
            for kind, sequence, body in self._receive():
                if sequence == asked:
                    assert kind is Kind.RESULT, body
                    return

    def ask_often(self) -> None:
        """So often that any daemon would have come by where it is to die."""
        for _ in range(STATS_MAX):
            self.stats()

    def wait_until_drained(self) -> None:
        """Asks until nothing is held any more."""
        self.wait_until(lambda stats: stats["daemon"]["held"] == 0)

    def wait_until(self, is_so: Callable[[dict[str, Any]], bool]) -> None:
        def check() -> None:
            with at_once():
                stats = self.stats()
            assert is_so(stats), stats

        eventually_sync(check)

    def wait_for_the_end(self) -> None:
        """Takes what comes until the daemon dies."""
        while True:
            self._receive()

    def _make(self) -> Sent:
        rng = self._rng
        self._made += 1
        queue = rng.choice(self._queues)
        count = rng.choice((1, 2, 5, 20))
        size = rng.randrange(10, 6000 // count)
        payloads = [
            f"{self._made}.{index} {rng.randbytes(size // 2).hex()}" for index in range(count)
        ]
        run_id = rng.randbytes(16)
        data = encode_run(
            [payload.encode() for payload in payloads],
            queue=queue,
            priority=rng.choice(PRIORITIES),
            due_ms=self._due_ms(),
            run_id=run_id,
            enqueued_ms=self._made,
            compressed=rng.random() < 0.5,
        )
        items = {
            format_item_id(run_id, index): text.encode() for index, text in enumerate(payloads)
        }
        self.payloads |= items
        self.queue_of |= dict.fromkeys(items, queue)
        return Sent(run_id, queue, data, items)

    def _due_ms(self) -> int:
        """Most are due at once, some soon, and a few so late that they wait in cold."""
        chance, now_ms = self._rng.random(), int(time() * 1000) + self._clock_ahead_ms
        if chance < self._share_far:
            return now_ms + FAR_MS
        return now_ms + self._rng.randrange(DELAY_MS_MAX) if chance > 0.9 else 0

    def _send(self, parts: list[wire.Buffer]) -> None:
        assert self._link is not None
        try:
            self._link.send(parts, monotonic() + ANSWER_S)
        except Lost as lost:
            raise Died from lost

    def _receive(self) -> list[tuple[Kind, int, bytes]]:
        assert self._link is not None
        try:
            frames = self._link.receive(ANSWER_S)
        except Lost as lost:
            raise Died from lost
        assert frames, "the daemon neither answers nor dies"
        self._take(frames)
        return frames

    def _take(self, frames: list[tuple[Kind, int, bytes]]) -> None:
        for kind, sequence, body in frames:
            if kind is Kind.ACK:
                sent = self._in_flight.pop(sequence)
                if wire.read_ack(body) is Outcome.STORED:
                    self.on_new(sent)
                self.acked.update(sent.items)
            elif kind is Kind.ERROR and sequence in self._in_flight:
                self._take_refusal(self._in_flight.pop(sequence), wire.read_error(body))

    def _take_refusal(self, sent: Sent, refused: Refused) -> None:
        if refused.code == "DRAINING":
            self._again.append(sent)
            return
        assert refused.code in self._may_refuse, f"the daemon refuses: {refused}"
        self.on_new(sent)
        self.refusals_now += 1
        self.refused.update(sent.items)
        for item in sent.items:
            del self.payloads[item]
