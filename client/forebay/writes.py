"""Writes that are seen whole or not at all (docs/protocol.md, "STAGE, SEAL, PUBLISH, ABORT").

    write = new_write_id()
    stage = client.stage(write)                      # in each task
    stage.submit(encode_run(payloads, queue="crm", headers={WRITE_HEADER: write.hex()}))
    sealed = stage.seal()
    client.publish(write, [sealed.stage])            # once, by the job's driver

Staged runs are durable when their stage is sealed, and invisible until their write is published. A
stage that is left behind, because its task died or another attempt won, needs no cleaning up:
publishing drops it, and so does the daemon after `spool.stage_ttl` without a request about the
write.

The client repeats every step after lost connections and temporary refusals; the daemon does it
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from forebay.errors import BadFrame, ForebayError, Refused, Unreachable
from forebay.exchange import WINDOW_RUNS, Exchange
from forebay.ids import new_run_id, parse_run_id
from forebay.limits import WRITE_ID_BYTES
from forebay.run import read_count
from forebay.stage_frames import RESERVED, WRITE_HEADER, pack_stage_head
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
    """A complete stage. If it has no runs, the daemon does not know it, and there is nothing to
    publish."""

    write: bytes
    stage: bytes
    runs: int
    items: int


@dataclass(frozen=True, slots=True)
class Published:
    """How publishing ended."""

    outcome: Literal["published", "duplicate"]
    """`duplicate`: the transaction was published before, and this write is dropped."""
    write: bytes | None
    """The visible write; None for a duplicate of a write that the daemon has forgotten."""
    items: int
    published_ms: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """How aborting ended."""

    outcome: Literal["aborted", "published"]
    """`published`: the write was published before, and stays."""
    items: int
    """How many were dropped, or published."""


def new_write_id() -> bytes:
    """A unique id for a write, 16 bytes. Later ids sort after earlier ones."""
    return new_run_id()


def write_id(write: bytes | str) -> bytes:
    """The 16 bytes of an id that is given as bytes or as 32 digits, with dashes or without.
    ValueError for anything else, and for the reserved ids: all zeros and all ones."""
    found = parse_run_id(write) if isinstance(write, str) else bytes(write)
    if len(found) != WRITE_ID_BYTES:
        raise ValueError(f"a write's id has {WRITE_ID_BYTES} bytes, not {len(found)}")
    if found in RESERVED:
        raise ValueError(f"id {found.hex()} is reserved")
    return found


class Stage:
    """The part of a write that one attempt stages. Made by `Client.stage`. Nothing is sent before
    the first run, so that a task without rows costs nothing."""

    def __init__(self, exchange: Exchange, write: bytes, *, window: int = WINDOW_RUNS) -> None:
        self.write = write_id(write)
        self.id = new_write_id()
        self.runs = 0
        self.items = 0
        """How many were submitted, acknowledged or not."""
        self._exchange = exchange
        self._window = window
        self._head = pack_stage_head(self.write, self.id)
        self._tally = Tally()
        self._sealed: Sealed | None = None

    def submit(self, run: Buffer) -> None:
        """Sends an encoded run, whose header `forebay-write` is this write's id in hexadecimal.

        Waits only while the window is full. The bytes are not copied, and must not change before
        `seal`. The refusal of an earlier run may be raised here; the stage cannot be sealed then.
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
            # `submit` has raised the refusals already.
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

    def drop_stage(self, write: bytes, stage: bytes) -> int:
        """Drops the stage of a task that has failed; how many items. Publishing would drop it too,
        but until then it takes room."""
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
        this application is a duplicate: nothing becomes visible. The request is repeated for
        `timeout` seconds (None: the client's own) until its outcome is known. Unreachable if it is
        still unknown then: any process may make the same call again. Refused if a stage is missing
        or not sealed: nothing is changed.
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
                f"it is not known whether the write {write.hex()} is published: {problem}"
            ) from problem

    def abort_write(self, write: bytes) -> Aborted:
        """Drops all stages of a write, unless it is published."""
        result = self._exchange.perform("write.abort", {"write": write_id(write).hex()})
        match text(result, "outcome"):
            case "aborted":
                return Aborted(ABORTED, number(result, "items"))
            case "published":
                return Aborted(PUBLISHED, number(result, "items"))
            case outcome:
                raise BadFrame(f"aborting ends in {outcome!r}")


def _read_published(result: Members) -> Published:
    """For a duplicate of a forgotten write the daemon sends the outcome only."""
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
