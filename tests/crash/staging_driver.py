"""Tasks and a driver that stage, seal, publish and abort, and remember what they were told.

Everything that was not answered before a daemon died is asked of the next one again, the same
bytes, as a client would; until then both outcomes are possible, and afterwards one is known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

from forebay import wire
from forebay.errors import Refused
from forebay.ids import format_item_id
from forebay.link import Link, Lost
from forebay.run import encode_run
from forebay.stage_frames import WRITE_HEADER, pack_stage_head
from forebay.wire import Kind
from tests.crash.producer import ANSWER_S, Died

OPEN, PUBLISHED, ABORTED = "open", "published", "aborted"
APP: Final = "job"
JOBS_OPEN_MAX: Final = 4

Answer = dict[str, Any] | Refused


@dataclass(frozen=True, slots=True)
class StagedRun:
    queue: str
    data: bytes
    items: dict[str, bytes]


@dataclass(slots=True)
class Part:
    """A stage."""

    stage: bytes
    sent: dict[bytes, StagedRun] = field(default_factory=dict)
    """By run id."""
    acked: set[bytes] = field(default_factory=set)
    is_sealed: bool = False

    def items(self) -> dict[str, bytes]:
        return {item: text for run in self.sent.values() for item, text in run.items.items()}


@dataclass(slots=True)
class Job:
    """A write: what it is for sure, and what it may be as well while a request is unanswered."""

    write: bytes
    parts: list[Part] = field(default_factory=list)
    state: str = OPEN
    wish: str | None = None
    chosen: frozenset[bytes] = frozenset()
    """The stages that were to be published."""
    version: int | None = None
    is_busy: bool = False

    def may_be(self) -> set[str]:
        return {self.state} | ({self.wish} if self.wish else set())

    def visible(self) -> dict[str, bytes]:
        """The items that are visible if it is published."""
        chosen = [part.items() for part in self.parts if part.stage in self.chosen]
        return {item: text for items in chosen for item, text in items.items()}


@dataclass(frozen=True, slots=True)
class Asked:
    kind: Kind
    body: bytes
    take: Callable[[Answer], None]


class StagingDriver:
    def __init__(self, rng: Random, queues: tuple[str, ...]) -> None:
        self._rng = rng
        self._queues = queues
        self._link: Link | None = None
        self._sequence = 0
        self._asked: dict[int, Asked] = {}
        self._again: list[Asked] = []
        self._version = 0
        self._transaction_is_open = False
        self.jobs: list[Job] = []
        self.version_known = 0
        """The highest version of which was told that it is published."""

    def connect(self, path: Path) -> None:
        """Asks again what was not answered."""
        self._again = [*self._asked.values(), *self._again]
        self._asked.clear()
        try:
            self._link = Link(path, "crash test", monotonic() + ANSWER_S)
        except Lost as lost:
            raise Died from lost
        again, self._again = self._again, []
        for order, asked in enumerate(again):
            try:
                self._send(asked)
            except Died:
                self._again = again[order + 1 :]
                raise

    def close(self) -> None:
        """Takes the answers that came before the end."""
        link, self._link = self._link, None
        if link is not None:
            try:
                while frames := link.receive(0):
                    self._take(frames)
            except Lost:
                pass
            link.close()

    def work(self, steps: int) -> None:
        """Died if the daemon dies."""
        self.wait()
        for _ in range(steps):
            self.send_some()
            self.wait()

    def send_some(self) -> None:
        """Some requests of different jobs at once: they share a commit, or not."""
        if sum(job.state == OPEN for job in self.jobs) < JOBS_OPEN_MAX:
            self.jobs.append(Job(self._rng.randbytes(16)))
        idle = [job for job in self.jobs[-12:] if not job.is_busy]
        for job in self._rng.sample(idle, min(len(idle), 4)):
            if job.state == OPEN:
                self._further(job)
            else:
                self._linger(job)

    def wait(self) -> None:
        while self._asked:
            self._receive()

    def finish(self) -> None:
        """Ends what is still open."""
        self.wait()
        for job in self.jobs:
            if job.state == OPEN:
                self._abort(job)
        self.wait()

    def stats(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def take(answer: Answer) -> None:
            assert isinstance(answer, dict)
            found.append(answer)

        self._send(Asked(Kind.STATS, b"", take))
        self.wait()
        return found[0]

    def receipt(self, job: Job) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def take(answer: Answer) -> None:
            assert isinstance(answer, dict), answer
            over = sum(answer[name] for name in ("delivered", "dead", "dropped", "deleted", "lost"))
            assert answer["accepted"] == over + answer["pending"] == len(job.visible())
            assert answer["pending"] >= 0
            found.append(answer)

        self._control(job, {"op": "receipt.show", "write": job.write.hex()}, take)
        self.wait()
        return found[0]

    # What a job may do next.

    def _further(self, job: Job) -> None:
        chance = self._rng.random()
        complete = [part for part in job.parts if part.acked == part.sent.keys()]
        if chance < 0.45 or not job.parts:
            self._stage(job)
        elif chance < 0.65:
            unsealed = [part for part in complete if not part.is_sealed]
            if unsealed:
                self._seal(job, self._rng.choice(unsealed))
        elif chance < 0.9:
            sealed = [part.stage for part in job.parts if part.is_sealed]
            self._publish(job, [stage for stage in sealed if self._rng.random() < 0.8])
        elif chance < 0.95:
            self._publish_in_vain(job)
        else:
            self._abort(job)

    def _linger(self, job: Job) -> None:
        """What others may still ask of a job that is over."""
        chance = self._rng.random()
        if chance < 0.3:
            self._straggle(job)
        elif chance < 0.6:
            self._abort(job)
        elif job.state == PUBLISHED and chance < 0.8:
            self._publish(job, [])

    def _stage(self, job: Job) -> None:
        unsealed = [part for part in job.parts if not part.is_sealed]
        if not unsealed or self._rng.random() < 0.4:
            job.parts.append(Part(self._rng.randbytes(16)))
            unsealed = job.parts[-1:]
        part = self._rng.choice(unsealed)
        for _ in range(self._rng.randrange(1, 5)):
            run_id, run = self._make(job)
            part.sent[run_id] = run

            def take(answer: Answer, run_id: bytes = run_id) -> None:
                assert isinstance(answer, dict), f"a staged run is refused: {answer}"
                part.acked.add(run_id)

            self._send(Asked(Kind.STAGE, pack_stage_head(job.write, part.stage) + run.data, take))

    def _straggle(self, job: Job) -> None:
        _, run = self._make(job)

        def take(answer: Answer) -> None:
            assert isinstance(answer, Refused)
            assert answer.code == "STAGE_OVER"

        head = pack_stage_head(job.write, self._rng.randbytes(16))
        self._send(Asked(Kind.STAGE, head + run.data, take))

    def _make(self, job: Job) -> tuple[bytes, StagedRun]:
        rng = self._rng
        run_id, queue, count = rng.randbytes(16), rng.choice(self._queues), rng.choice((1, 3, 9))
        payloads = [rng.randbytes(rng.randrange(5, 1500 // count)).hex() for _ in range(count)]
        data = encode_run(
            [payload.encode() for payload in payloads],
            queue=queue,
            priority=rng.choice((0, 5, 5)),
            run_id=run_id,
            headers={WRITE_HEADER: job.write.hex()},
            compressed=rng.random() < 0.5,
        )
        items = {
            format_item_id(run_id, index): text.encode() for index, text in enumerate(payloads)
        }
        return run_id, StagedRun(queue, data, items)

    def _seal(self, job: Job, part: Part) -> None:
        request = {
            "op": "stage.seal",
            "write": job.write.hex(),
            "stage": part.stage.hex(),
            "runs": len(part.sent),
            "items": len(part.items()),
        }

        def take(answer: Answer) -> None:
            assert isinstance(answer, dict), answer
            part.is_sealed = True

        self._control(job, request, take)

    def _publish(self, job: Job, stages: list[bytes]) -> None:
        request: dict[str, Any] = {
            "op": "write.publish",
            "write": job.write.hex(),
            "stages": [stage.hex() for stage in stages],
        }
        is_new = job.state == OPEN
        outcome = PUBLISHED
        in_transaction = is_new and not self._transaction_is_open and self._rng.random() < 0.5
        if in_transaction:
            self._transaction_is_open = True
            is_duplicate = self._version > 0 and self._rng.random() < 0.3
            version = self._version + 1
            if is_duplicate:
                version = self._rng.randrange(1, version)
            outcome = "duplicate" if is_duplicate else PUBLISHED
            request |= {"app": APP, "version": version}
            self._version = max(self._version, version)
            job.version = None if is_duplicate else version
        if is_new:
            job.wish = ABORTED if outcome == "duplicate" else PUBLISHED
            job.chosen = frozenset(stages) if outcome == PUBLISHED else frozenset()

        def take(answer: Answer) -> None:
            assert isinstance(answer, dict), answer
            assert answer["outcome"] == outcome
            if outcome == PUBLISHED:
                assert (answer["write"], answer["items"]) == (job.write.hex(), len(job.visible()))
            if in_transaction:
                self._transaction_is_open = False
                self.version_known = max(self.version_known, job.version or 0)
            if is_new:
                assert job.wish is not None
                job.state, job.wish = job.wish, None

        self._control(job, request, take)

    def _publish_in_vain(self, job: Job) -> None:
        """A stage that does not exist: nothing is changed."""
        stages = [part.stage.hex() for part in job.parts if part.is_sealed] + ["ee" * 16]
        request = {"op": "write.publish", "write": job.write.hex(), "stages": stages}

        def take(answer: Answer) -> None:
            assert isinstance(answer, Refused)
            assert answer.code == "NOT_FOUND"

        self._control(job, request, take)

    def _abort(self, job: Job) -> None:
        if job.state == OPEN:
            job.wish = ABORTED
        outcome = PUBLISHED if job.state == PUBLISHED else ABORTED

        def take(answer: Answer) -> None:
            assert isinstance(answer, dict), answer
            assert answer["outcome"] == outcome
            job.state, job.wish = outcome, None

        self._control(job, {"op": "write.abort", "write": job.write.hex()}, take)

    # The wire.

    def _control(self, job: Job, request: dict[str, Any], take: Callable[[Answer], None]) -> None:
        """One request about a job at a time, so that its outcome is known beforehand."""
        job.is_busy = True

        def taken(answer: Answer) -> None:
            job.is_busy = False
            take(answer)

        self._send(Asked(Kind.CONTROL, wire.pack_json(request), taken))

    def _send(self, asked: Asked) -> None:
        assert self._link is not None
        self._sequence += 1
        self._asked[self._sequence] = asked
        head = wire.frame_head(asked.kind, self._sequence, len(asked.body))
        try:
            self._link.send([head, asked.body], monotonic() + ANSWER_S)
        except Lost as lost:
            raise Died from lost

    def _receive(self) -> None:
        assert self._link is not None
        try:
            frames = self._link.receive(ANSWER_S)
        except Lost as lost:
            raise Died from lost
        assert frames, "the daemon neither answers nor dies"
        self._take(frames)

    def _take(self, frames: list[tuple[Kind, int, bytes]]) -> None:
        for kind, sequence, body in frames:
            if sequence not in self._asked:
                continue
            match kind:
                case Kind.ACK:
                    answer: Answer = {"outcome": wire.read_ack(body)}
                case Kind.ERROR:
                    answer = wire.read_error(body)
                case _:
                    answer = wire.read_json(body)
            self._asked.pop(sequence).take(answer)
