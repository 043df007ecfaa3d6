"""Writes: which are staged, sealed, published and dropped, as the journal remembers them.

The cold store decides about writes (actors/writes/). The journal keeps their runs, and in its
record log which stages are sealed or dropped, and which decisions it has carried out. That counts
also if the cold store is lost: what the journal has published stays published, and it remembers the
last version of each application.

A write is open until its decision is carried out here, and is remembered for a while after that, so
that a straggler's stage is refused. Every change is first judged here (`decide_...`: a refusal, or
a result with its record), then written to the record log, and applied once that is durable
(`apply`, also at the next start). Plain data of the spooler's task.

Older versions moved items of a write from one journal to another, so a write that was published
elsewhere may have items here. That is remembered separately from its phase, as long as a receipt
is.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import nlargest
from typing import Any, Final, Literal, NamedTuple

from actors.ports.journal import Record
from actors.ports.writes import LastVersion, OpenWrite, Published, SealedStage, Verdict, WriteView
from actors.spooler.backlog import Places
from forebay.errors import Refused
from forebay.stage_frames import MOVED

APPS_MAX: Final = 100_000
"""How many applications' last versions are known; the one that was quiet longest goes first."""


class Phase(Enum):
    OPEN = auto()
    PUBLISHED = auto()
    ABORTED = auto()


PHASES: Final[dict[Phase, Literal["open", "published", "aborted"]]] = {
    Phase.OPEN: "open",
    Phase.PUBLISHED: "published",
    Phase.ABORTED: "aborted",
}


@dataclass(slots=True, eq=False)
class Stage:
    """The runs that one attempt of a task has staged, while they are invisible."""

    runs: int = 0
    items: Counter[str] = field(default_factory=Counter)
    """Items by queue."""
    lanes: dict[tuple[str, int], Places] = field(default_factory=dict)
    """Places of its runs, by queue and priority, in order of arrival."""
    sealed_runs: int | None = None
    """None: it is still being written."""

    def sealed_as(self, stage: bytes) -> SealedStage:
        runs = self.runs if self.sealed_runs is None else self.sealed_runs
        return SealedStage(stage, runs, self.items.total(), tuple(sorted(self.items)))


@dataclass(slots=True, eq=False)
class Write:
    phase: Phase = Phase.OPEN
    heard_ms: int = 0
    stages: dict[bytes, Stage] = field(default_factory=dict)
    """The stages of an open write."""
    dropped: set[bytes] = field(default_factory=set)
    """Stages of an open write that were dropped."""
    published: frozenset[bytes] = frozenset()
    """The stages that are visible."""
    items: int = 0
    """Items that were published, or dropped by the abort."""
    queues: tuple[str, ...] = ()
    app: str | None = None
    version: int | None = None
    is_kept: bool = False
    """It does not expire: its end may have been recorded where the record log was damaged."""


class Decision(NamedTuple):
    result: SealedStage | int | None
    """What the request is answered."""
    record: Record | None = None
    """None: nothing changes."""


class Gone(NamedTuple):
    """Stages affected by a change, for the spooler to carry out."""

    visible: list[Stage]
    dropped: list[Stage]


class Writes:
    def __init__(self) -> None:
        self._writes: dict[bytes, Write] = {}
        self._versions: dict[str, tuple[int, bytes]] = {}
        """The last version of each application, and its write."""
        self._moved: dict[bytes, int] = {}
        """Writes with items that were moved here, and the time of the last move."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._writes)

    def __len__(self) -> int:
        """Roughly how many records are needed to remember everything."""
        return len(self._writes) + len(self._versions) + len(self._moved)

    def phase(self, write: bytes, stage: bytes) -> Phase:
        """The phase of a stage; a stage that its published write did not name is dropped."""
        if stage == MOVED:
            return Phase.PUBLISHED
        known = self._writes.get(write)
        if known is None:
            return Phase.OPEN
        if known.phase is Phase.PUBLISHED and stage not in known.published:
            return Phase.ABORTED
        return Phase.ABORTED if stage in known.dropped else known.phase

    def published(self, write: bytes) -> Write | None:
        known = self._writes.get(write)
        return known if known is not None and known.phase is Phase.PUBLISHED else None

    @property
    def moved(self) -> Mapping[bytes, int]:
        """Writes with items that were moved here, and the time of the last move."""
        return self._moved

    def note_moved(self, write: bytes, at_ms: int) -> None:
        self._moved[write] = max(at_ms, self._moved.get(write, 0))

    # Staging.

    def refuse(self, write: bytes, stage: bytes) -> Refused | None:
        """The reason why nothing more can be staged there, if any."""
        known = self._writes.get(write)
        if known is None:
            return None
        if known.phase is not Phase.OPEN:
            text = f"the write {write.hex()} is {known.phase.name.lower()}"
            return Refused("STAGE_OVER", text)
        if stage in known.dropped:
            return Refused("STAGE_OVER", f"the stage {stage.hex()} was dropped")
        found = known.stages.get(stage)
        if found is not None and found.sealed_runs is not None:
            return Refused("STAGE_OVER", f"the stage {stage.hex()} is sealed")
        return None

    def add(
        self,
        write: bytes,
        stage: bytes,
        lane: tuple[str, int],
        position: int,
        size: int,
        items: int,
        now_ms: int,
    ) -> None:
        """Adds a stored run to an open write."""
        known = self._writes.setdefault(write, Write())
        known.heard_ms = max(known.heard_ms, now_ms)
        found = known.stages.setdefault(stage, Stage())
        found.runs += 1
        found.items[lane[0]] += items
        found.lanes.setdefault(lane, Places()).append(position, size, items)

    # Changes.

    def decide_seal(
        self, write: bytes, stage: bytes, runs: int, items: int, now_ms: int
    ) -> Decision | Refused:
        """Results in the sealed stage, or in nothing if its write is published."""
        if self.phase(write, stage) is Phase.PUBLISHED:
            return Decision(None)
        known = self._writes.get(write)
        found = known.stages.get(stage) if known is not None else None
        if found is None:
            return _no_stage(stage)
        if (found.runs, found.items.total()) != (runs, items):
            return _bad(
                f"the stage {stage.hex()} has {found.runs} runs and {found.items.total()} items, "
                f"not {runs} and {items}"
            )
        sealed = found.sealed_as(stage)
        if found.sealed_runs is not None:
            return Decision(sealed)
        return Decision(sealed, _sealed(write, sealed, now_ms))

    def decide_drop(
        self, write: bytes, stage: bytes, now_ms: int, *, also_sealed: bool
    ) -> Decision:
        """Drops the stage of a failed task; nothing more is accepted for it. Results in the number
        of items, or in nothing if it is sealed and stays."""
        known = self._writes.get(write, Write())
        part = known.stages.get(stage)
        if part is not None and part.sealed_runs is not None and not also_sealed:
            return Decision(None)
        if known.phase is not Phase.OPEN or stage in known.dropped:
            return Decision(0)
        items = part.items.total() if part is not None else 0
        return Decision(items, _dropped(write, stage, items, now_ms))

    def decide_applied(self, verdict: Verdict, now_ms: int) -> Decision:
        """Carries out a decision on whatever exists of the write here. Results in the number of
        published items that are missing: they were lost on this disk."""
        known = self._writes.get(verdict.write, Write())
        if not verdict.is_published:
            is_over = known.phase is not Phase.OPEN
            return Decision(0, None if is_over else _aborted(verdict.write, known, now_ms))
        if known.phase is Phase.PUBLISHED:
            return Decision(0)
        here = sum(
            known.stages[stage].items.total() for stage in verdict.stages if stage in known.stages
        )
        published = Write(
            # Receipts are kept from this time on, by this host's clock as by the others'.
            heard_ms=min(now_ms, verdict.at_ms),
            published=frozenset(verdict.stages),
            items=verdict.items,
            queues=verdict.queues,
            app=verdict.app,
            version=verdict.version,
        )
        return Decision(verdict.items - here, _published(verdict.write, published))

    # Questions.

    def view(self, write: bytes, stages: Sequence[bytes], app: str | None) -> WriteView | Refused:
        known = self._writes.get(write, Write())
        sealed: list[SealedStage] = []
        for stage in stages:
            part = known.stages.get(stage)
            if part is None or part.sealed_runs is None:
                continue
            if part.sealed_runs != part.runs:
                return _damaged(stage, part)
            sealed.append(part.sealed_as(stage))
        return WriteView(
            PHASES[known.phase],
            known.items + sum(part.items.total() for part in known.stages.values()),
            self._published(write),
            tuple(sealed),
            self._last(app),
        )

    def _published(self, write: bytes) -> Published | None:
        known = self.published(write)
        if known is None:
            return None
        return Published("published", write, known.items, known.heard_ms)

    def _last(self, app: str | None) -> LastVersion | None:
        if app is None or app not in self._versions:
            return None
        version, holder = self._versions[app]
        return LastVersion(version, holder, self._published(holder))

    def open_writes(self) -> list[OpenWrite]:
        return [
            OpenWrite(write, known.heard_ms, known.is_kept)
            for write, known in self._writes.items()
            if known.phase is Phase.OPEN
        ]

    def describe(self, write: bytes | None, limit: int, *, also_over: bool) -> dict[str, Any]:
        """For operators: the writes last heard of, or the one that is asked for."""
        chosen = [
            (name, known)
            for name, known in self._writes.items()
            if (also_over or known.phase is Phase.OPEN) and write in (None, name)
        ]
        newest = nlargest(limit, chosen, key=lambda entry: entry[1].heard_ms)
        return {
            "writes": [_described(name, known) for name, known in newest],
            "more": len(chosen) - len(newest),
        }

    def keep_open(self) -> int:
        """Keeps all open writes from expiring and returns their number. The record log was damaged,
        so any of them may have been published; each stays until it is published or aborted."""
        known = [entry for entry in self._writes.values() if entry.phase is Phase.OPEN]
        for entry in known:
            entry.is_kept = True
        return len(known)

    # Records.

    def apply(self, record: Record) -> Gone:
        """Applies a durable record. Raises KeyError, TypeError or ValueError for an invalid record;
        then nothing is changed."""
        write, at_ms = bytes.fromhex(record["write"]), int(record["at_ms"])
        match record["is"]:
            case "sealed":
                name, runs = bytes.fromhex(record["stage"]), int(record["runs"])
                stage = self._heard(write, at_ms).stages.setdefault(name, Stage())
                stage.sealed_runs = runs
                return Gone([], [])
            case "kept":
                self._heard(write, at_ms).is_kept = True
                return Gone([], [])
            case "dropped":
                name = bytes.fromhex(record["stage"])
                known = self._heard(write, at_ms)
                known.dropped.add(name)
                part = known.stages.pop(name, None)
                return Gone([], [] if part is None else [part])
            case "aborted":
                items = int(record["items"])
                known = self._heard(write, at_ms)
                known.phase, known.items = Phase.ABORTED, items
                stages, known.stages = known.stages, {}
                return Gone([], list(stages.values()))
            case "published":
                return self._publish(write, at_ms, record)
            case "moved":
                self.note_moved(write, at_ms)
                return Gone([], [])
            case kind:
                raise ValueError(f"there is no record {kind!r}")

    def _publish(self, write: bytes, at_ms: int, record: Record) -> Gone:
        published = frozenset(bytes.fromhex(stage) for stage in record["stages"])
        items, queues = int(record["items"]), tuple(map(str, record["queues"]))
        app, version = record["app"], record["version"]
        if app is not None:
            self._note_version(str(app), int(version), write)
        known = self._heard(write, at_ms)
        known.phase, known.published = Phase.PUBLISHED, published
        known.items, known.queues = items, queues
        known.app, known.version = app, version
        stages, known.stages = known.stages, {}
        visible = [stage for name, stage in stages.items() if name in published]
        dropped = [stage for name, stage in stages.items() if name not in published]
        return Gone(visible, dropped)

    def _heard(self, write: bytes, at_ms: int) -> Write:
        known = self._writes.setdefault(write, Write())
        known.heard_ms = at_ms
        return known

    def _note_version(self, app: str, version: int, write: bytes) -> None:
        """Keeps the highest version, in whichever order records are read."""
        if app in self._versions and version <= self._versions[app][0]:
            return
        self._versions.pop(app, None)
        self._versions[app] = (version, write)
        if len(self._versions) > APPS_MAX:
            del self._versions[next(iter(self._versions))]

    def restore(self, records: Sequence[Record]) -> int:
        """Applies the records found at start; returns how many were invalid."""
        lost = 0
        for record in records:
            try:
                if record["is"] == "version":
                    write = bytes.fromhex(record["write"])
                    self._note_version(str(record["app"]), int(record["version"]), write)
                else:
                    self.apply(record)
            except (KeyError, TypeError, ValueError):
                lost += 1
        return lost

    def forget(self, before_ms: int, needed: frozenset[bytes]) -> list[bytes]:
        """Forgets writes that ended before then and that no chunk on disk needs."""
        gone = [
            write
            for write, known in self._writes.items()
            if known.phase is not Phase.OPEN
            and max(known.heard_ms, self._moved.get(write, 0)) < before_ms
            and write not in needed
        ]
        gone += [
            write
            for write, at_ms in self._moved.items()
            if at_ms < before_ms and write not in needed and write not in self._writes
        ]
        for write in gone:
            self._writes.pop(write, None)
            self._moved.pop(write, None)
        return gone

    def is_known(self, write: bytes) -> bool:
        """Whether its receipt is kept: it was published here, or items of it were moved here."""
        return write in self._moved or self.published(write) is not None

    def records(self) -> list[Record]:
        """All records that must be kept."""
        found: list[Record] = []
        for write, known in self._writes.items():
            if known.phase is Phase.PUBLISHED:
                found.append(_published(write, known))
            elif known.phase is Phase.ABORTED:
                found.append(_aborted(write, known, known.heard_ms))
            else:
                if known.is_kept:
                    found.append({"is": "kept", "at_ms": known.heard_ms, "write": write.hex()})
                found += [_dropped(write, stage, 0, known.heard_ms) for stage in known.dropped]
                found += [
                    _sealed(write, part.sealed_as(stage), known.heard_ms)
                    for stage, part in known.stages.items()
                    if part.sealed_runs is not None
                ]
        found += [_moved(write, at_ms) for write, at_ms in self._moved.items()]
        versions = [
            {"is": "version", "app": app, "version": version, "write": write.hex()}
            for app, (version, write) in self._versions.items()
        ]
        return found + versions


def _described(write: bytes, known: Write) -> dict[str, Any]:
    parts = known.stages.values()
    return {
        "write": write.hex(),
        "phase": known.phase.name.lower(),
        "stages": len(parts),
        "sealed": sum(part.sealed_runs is not None for part in parts),
        "items": known.items + sum(part.items.total() for part in parts),
        "queues": sorted({queue for part in parts for queue in part.items} | set(known.queues)),
        "heard_ms": known.heard_ms,
        "app": known.app,
        "version": known.version,
    }


def _published(write: bytes, known: Write) -> Record:
    return {
        "is": "published",
        "at_ms": known.heard_ms,
        "write": write.hex(),
        "stages": sorted(stage.hex() for stage in known.published),
        "items": known.items,
        "queues": list(known.queues),
        "app": known.app,
        "version": known.version,
    }


def _moved(write: bytes, at_ms: int) -> Record:
    return {"is": "moved", "at_ms": at_ms, "write": write.hex()}


def _aborted(write: bytes, known: Write, now_ms: int) -> Record:
    items = known.items + sum(stage.items.total() for stage in known.stages.values())
    return {"is": "aborted", "at_ms": now_ms, "write": write.hex(), "items": items}


def _sealed(write: bytes, stage: SealedStage, now_ms: int) -> Record:
    return {
        "is": "sealed",
        "at_ms": now_ms,
        "write": write.hex(),
        "stage": stage.stage.hex(),
        "runs": stage.runs,
        "items": stage.items,
    }


def _dropped(write: bytes, stage: bytes, items: int, now_ms: int) -> Record:
    return {
        "is": "dropped",
        "at_ms": now_ms,
        "write": write.hex(),
        "stage": stage.hex(),
        "items": items,
    }


def _damaged(stage: bytes, part: Stage) -> Refused:
    text = f"{part.runs} of {part.sealed_runs} sealed runs"
    return _bad(f"the stage {stage.hex()} has {text}: the disk was damaged")


def _no_stage(stage: bytes) -> Refused:
    return Refused("NOT_FOUND", f"there is no stage {stage.hex()}: it is not here, or it is over")


def _bad(text: str) -> Refused:
    return Refused("BAD_REQUEST", text)
