"""Writes that are seen whole or not at all (docs/protocol.md, "STAGE, SEAL, PUBLISH, ABORT").

    write = new_write_id()
    stage = client.stage(write)                      # in each task
    stage.submit(encode_run(payloads, queue="crm", headers={WRITE_HEADER: write.hex()}))
    sealed = stage.seal()
    client.publish(write, [sealed.stage])            # once, by the job's driver

Staged runs are durable when their stage is sealed, and invisible until their write is published. A
stage that is left behind, because its task died or another attempt won, needs no care: publishing
drops it, and so does the daemon after `spool.stage_ttl` without a request about the write.

Every step is repeated through lost connections and refusals that pass; the daemon does it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from forebay.errors import BadFrame, ForebayError, Refused, Unreachable
from forebay.exchange import WINDOW_RUNS, Exchange
from forebay.ids import new_run_id, parse_run_id
from forebay.limits import WRITE_ID_BYTES
from forebay.run import read_count
from forebay.stage_frames import MOVED, RESERVED, WRITE_HEADER, pack_stage_head
from forebay.tally import Tally
from forebay.wire import Buffer, Members, identifier, number, number_or_none, text

__all__ = [
    "WRITE_HEADER",
    "Aborted",
    "Published",
    "Sealed",
    "Stage",
    "Writes",
    "new_write_id",
    "write_id",
]

PUBLISHED: Final = "published"
DUPLICATE: Final = "duplicate"
ABORTED: Final = "aborted"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A stage that is complete. With no runs the daemon knows nothing of it, and there is nothing
    to publish."""

    write: bytes
    stage: bytes
    runs: int
    items: int


@dataclass(frozen=True, slots=True)
class Published:
    """How publishing ended."""

    outcome: Literal["published", "duplicate"]
    """A duplicate is one whose transaction was published before; this write is dropped."""
    write: bytes | None
    """The write that is visible now; None if it is a duplicate of one long gone."""
    items: int
    published_ms: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """How aborting ended."""

    outcome: Literal["aborted", "published"]
    """What was published before stays so."""
    items: int
    """How many were dropped, or published."""


_MOVED_HEAD: Final = pack_stage_head(MOVED, MOVED)


def new_write_id() -> bytes:
    """A unique id for a write, 16 bytes. Later ids sort behind earlier ones."""
    return new_run_id()


def write_id(write: bytes | str) -> bytes:
    """16 bytes, or the 32 digits that stand for them, with dashes or without; ValueError for
    anything else, and for the reserved ids: all zeros and all ones."""
    found = parse_run_id(write) if isinstance(write, str) else bytes(write)
    if len(found) != WRITE_ID_BYTES:
        raise ValueError(f"a write's id has {WRITE_ID_BYTES} bytes, not {len(found)}")
    if found in RESERVED:
        raise ValueError(f"id {found.hex()} is reserved")
    return found


class Stage:
    """One attempt's part of a write. Made by `Client.stage`. Nothing is sent before the first run,
    so that a task without rows costs nothing."""

    def __init__(self, exchange: Exchange, write: bytes, *, window: int = WINDOW_RUNS) -> None:
        self.write = write_id(write)
        self.id = new_write_id()
        self.runs = 0
        self.items = 0
        """What was submitted, acknowledged or not."""
        self._exchange = exchange
        self._window = window
        self._head = pack_stage_head(self.write, self.id)
        self._tally = Tally()
        self._sealed: Sealed | None = None

    def submit(self, run: Buffer) -> None:
        """Sends an encoded run, whose header `forebay-write` is this write's id in hexadecimal.

        Waits only while the window is full. The bytes are not copied, and must not change before
        `seal`. The refusal of an earlier run may be raised here; then the stage is spoilt.
        """
        if self._sealed is not None:
            raise ValueError("the stage is sealed")
        self.runs += 1
        self.items += read_count(run)
        self._exchange.stage(self._head, run, self._window, self._tally)

    def seal(self) -> Sealed:
        """Waits until every run is acknowledged, and closes the stage: it takes nothing more."""
        if self._sealed is None:
            if self.runs:
                self._exchange.drain()
                self._check_complete()
                self._exchange.perform("stage.seal", self._members())
            self._sealed = Sealed(self.write, self.id, self.runs, self.items)
        return self._sealed

    def _check_complete(self) -> None:
        missing = self.runs - self._tally.runs
        if missing:
            # The refusals themselves were raised before.
            raise ForebayError(f"{missing} of {self.runs} runs were refused: nothing to seal")

    def _members(self) -> dict[str, Any]:
        ids = {"write": self.write.hex(), "stage": self.id.hex()}
        return {**ids, "runs": self.runs, "items": self.items}


class Writes:
    """The part of a client that is about writes."""

    _exchange: Exchange

    def stage(self, write: bytes, *, window: int = WINDOW_RUNS) -> Stage:
        """A fresh stage of a write; see `Stage`."""
        return Stage(self._exchange, write, window=window)

    def submit_moved(
        self, run: Buffer, *, window: int = WINDOW_RUNS, tally: Tally | None = None
    ) -> None:
        """As `submit`, a run of a write that was published elsewhere: it is visible at once, and
        counts in the receipt of the write that its header names."""
        self._exchange.stage(_MOVED_HEAD, run, window, Tally() if tally is None else tally)

    def drop_stage(self, write: bytes, stage: bytes) -> int:
        """Drops what a task that has failed had staged: how many items. Publishing would drop it
        as well; until then it takes room."""
        members = {"write": write_id(write).hex(), "stage": write_id(stage).hex()}
        return number(self._exchange.perform("stage.drop", members), "items")

    def publish(
        self,
        write: bytes,
        stages: Sequence[bytes],
        *,
        app: str | None = None,
        version: int | None = None,
        timeout: float | None = None,
    ) -> Published:
        """Makes these stages visible in one step, and drops all others of the write.

        With `app` and `version`, a version that is not above the highest that was published for
        this application is a duplicate: nothing becomes visible. Repeated until the outcome is
        known, for `timeout` seconds (the client's own if None). Unreachable if it is not known
        then: the same call may be made again, by any process. Refused if a stage is missing or not
        sealed: nothing is changed.
        """
        if (app is None) != (version is None):
            raise ValueError("a transaction has both app and version")
        members: dict[str, Any] = {"write": write_id(write).hex()}
        members["stages"] = [write_id(stage).hex() for stage in stages]
        if app is not None:
            members |= {"app": app, "version": version}
        try:
            return _read_published(
                self._exchange.perform("write.publish", members, timeout=timeout)
            )
        except (Unreachable, Refused) as problem:
            # An error that ends the connection does not answer this request.
            if isinstance(problem, Refused) and not (problem.retryable or problem.fatal):
                raise
            raise Unreachable(
                f"whether the write {write.hex()} is published is not known: {problem}"
            ) from problem

    def abort_write(self, write: bytes) -> Aborted:
        """Drops all stages of a write, unless it is published: that stays."""
        result = self._exchange.perform("write.abort", {"write": write_id(write).hex()})
        match text(result, "outcome"):
            case "aborted":
                return Aborted(ABORTED, number(result, "items"))
            case "published":
                return Aborted(PUBLISHED, number(result, "items"))
            case outcome:
                raise BadFrame(f"aborting ends in {outcome!r}")


def _read_published(result: Members) -> Published:
    """Of a duplicate that is long gone only the outcome is known."""
    visible = None if result.get("write") is None else identifier(result, "write")
    items = number_or_none(result, "items") or 0
    published_ms = number_or_none(result, "published_ms") or 0
    match text(result, "outcome"):
        case "published":
            return Published(PUBLISHED, visible, items, published_ms)
        case "duplicate":
            return Published(DUPLICATE, visible, items, published_ms)
        case outcome:
            raise BadFrame(f"publishing ends in {outcome!r}")
