"""Notices: groups similar incidents and decides when each group is reported. Pure decisions.

An `Incident` comes from one batch: a number of items of a queue became dead letters for one kind of
error, or a trigger has failed. A `Notice` reports the incidents of a group: the first at once,
later ones once per window, with the count and a few ids. A group without incidents for a whole
window is forgotten, and its next incident is reported at once again. At most `rate` notices are
made in any minute: groups that are due meanwhile wait and gather more, so that the counts stay
complete.

Time is an argument. Memory is bounded: past `GROUPS_MAX` groups, new ones share a group of others;
of a group a few ids and one error are kept.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from actors.config.observers import NotificationSettings, Occasion
from actors.model.error_types import error_type
from actors.model.slices import ERROR_TEXT_MAX, Slice, first_item_id, indexes
from actors.observers.batch import Batch
from actors.observers.failure_log import UNPACK_BYTES_MAX
from forebay.ids import format_item_id
from forebay.run import IDS

GROUPS_MAX: Final = 200
SAMPLES_MAX: Final = 10
MINUTE_S: Final = 60.0
OTHERS: Final = "(others)"
"""The group of all new groups past GROUPS_MAX."""
SEVERAL: Final = "(several)"
"""Stands for the queue, trigger or error type of a group that has more than one."""

GroupName = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Incident:
    occasion: Occasion
    source: str
    """The queue of dead letters, or the trigger."""
    error_type: str
    error: str
    count: int
    """Items; 1 for a trigger."""
    ids: tuple[str, ...]
    """The ids of some of the items."""
    at_ms: int
    polled: str | None = None
    """The queue that a trigger takes its items from."""

    @property
    def queue(self) -> str | None:
        """The queue by which notifications select it."""
        return self.source if self.occasion == "dead" else self.polled


@dataclass(frozen=True, slots=True)
class Notice:
    """A report about a group."""

    id: str
    notification: str
    occasion: Occasion
    source: str
    error_type: str
    error: str
    """The latest error."""
    count: int
    ids: tuple[str, ...]
    first_ms: int
    last_ms: int

    @property
    def text(self) -> str:
        """The notice as one sentence."""
        if self.occasion == "trigger_failed":
            times = "" if self.count == 1 else f" {self.count} times"
            return f"trigger {self.source} has failed{times}: {self.error}"
        are = "item is a dead letter" if self.count == 1 else "items are dead letters"
        return f"{self.count} {are} of {self.source}: {self.error}"

    def fields(self) -> dict[str, Any]:
        """The notice as it is sent; docs/notifications.md explains each field."""
        is_dead = self.occasion == "dead"
        return {
            "notice": self.id,
            "notification": self.notification,
            "on": self.occasion,
            "text": self.text,
            "queue": self.source if is_dead else None,
            "trigger": None if is_dead else self.source,
            "error_type": self.error_type,
            "error": self.error,
            "count": self.count,
            "ids": list(self.ids),
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
        }


@dataclass(slots=True)
class _Group:
    occasion: Occasion
    source: str
    error_type: str
    due: float
    """When it may be reported again."""
    count: int = 0
    """Items that are not reported yet."""
    incidents: int = 0
    error: str = ""
    ids: list[str] = field(default_factory=list)
    first_ms: int = 0
    last_ms: int = 0

    def add(self, incident: Incident) -> None:
        if not self.count:
            self.first_ms = incident.at_ms
            self.source, self.error_type = incident.source, incident.error_type
        if self.source != incident.source:
            self.source = SEVERAL
        if self.error_type != incident.error_type:
            self.error_type = SEVERAL
        self.count += incident.count
        self.incidents += 1
        self.error = incident.error
        self.last_ms = incident.at_ms
        self.ids += incident.ids[: SAMPLES_MAX - len(self.ids)]

    def told(self, name: str, notice_id: str, due: float) -> Notice:
        notice = Notice(
            notice_id,
            name,
            self.occasion,
            self.source,
            self.error_type,
            self.error,
            self.count,
            tuple(self.ids),
            self.first_ms,
            self.last_ms,
        )
        self.count, self.incidents, self.due, self.ids = 0, 0, due, []
        return notice


class Grouping:
    """The groups of one notification. The caller supplies the time, in seconds."""

    def __init__(self, name: str, settings: NotificationSettings) -> None:
        self._name = name
        self._settings = settings
        self._groups: dict[GroupName, _Group] = {}
        self._told: deque[float] = deque(maxlen=settings.rate)
        """When the last notices were made."""
        self.suppressed_total = 0
        """Incidents that shared a notice with others, not counting the first of each notice."""

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, incident: Incident, now: float) -> None:
        """Adds an incident; `due` decides whether it is reported now."""
        name = self._group_name(incident)
        group = self._groups.get(name)
        if group is None and len(self._groups) >= GROUPS_MAX:
            name = (incident.occasion, OTHERS)
            group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(
                incident.occasion, incident.source, incident.error_type, now
            )
        group.add(incident)

    def due(self, now: float, new_id: Callable[[], str], *, is_last: bool = False) -> list[Notice]:
        """The notices to send now, those that have waited longest first. `is_last`: do not wait for
        windows any more."""
        for name in [name for name, each in self._groups.items() if is_over(each, now)]:
            del self._groups[name]
        waiting = [each for each in self._groups.values() if each.count]
        if not is_last:
            waiting = [each for each in waiting if each.due <= now]
        notices: list[Notice] = []
        for group in sorted(waiting, key=lambda each: each.due):
            if not self._may_tell(now):
                break
            self._told.append(now)
            self.suppressed_total += group.incidents - 1
            notices.append(group.told(self._name, new_id(), now + self._settings.window))
        return notices

    def next_at(self) -> float | None:
        """When to call `due` again; None: not before the next incident."""
        silent = min((each.due for each in self._groups.values() if not each.count), default=None)
        waiting = min((each.due for each in self._groups.values() if each.count), default=None)
        if waiting is not None and len(self._told) == self._settings.rate:
            waiting = max(waiting, self._told[0] + MINUTE_S)
        return min((at for at in (silent, waiting) if at is not None), default=None)

    def _may_tell(self, now: float) -> bool:
        told = self._told
        return len(told) < self._settings.rate or now >= told[0] + MINUTE_S

    def _group_name(self, incident: Incident) -> GroupName:
        parts = {"queue": incident.source, "error_type": incident.error_type}
        return (incident.occasion, *(parts[key] for key in self._settings.group_by))


def is_over(group: _Group, now: float) -> bool:
    """Whether the group had no incident for a whole window."""
    return not group.count and group.due <= now


def dead_incidents(batch: Batch) -> list[Incident]:
    """The dead letters of a batch: one incident per kind of error, however many slices and texts
    there are. Costs nothing per item, except for the few whose ids are shown."""
    found: dict[str, list[Slice]] = {}
    for _, conclusion in batch.ours:
        for dead in conclusion.dead:
            found.setdefault(error_type(dead.errors[-1].text), []).append(dead)
    return [_incident(batch.queue, kind, slices, batch.at_ms) for kind, slices in found.items()]


def _incident(queue: str, kind: str, slices: Sequence[Slice], at_ms: int) -> Incident:
    return Incident(
        "dead",
        queue,
        kind,
        slices[-1].errors[-1].text[:ERROR_TEXT_MAX],
        sum(each.items for each in slices),
        sample_ids(slices),
        at_ms,
    )


def sample_ids(slices: Sequence[Slice]) -> tuple[str, ...]:
    """The ids of the first few items. A run that lists its ids must be unpacked for them: that is
    done for one item only, of a run that is not large (4 MiB take 4 ms)."""
    listed = [
        each
        for each in slices
        if each.run.head.flags & IDS and each.run.head.raw_bytes <= UNPACK_BYTES_MAX
    ]
    ids = [first_item_id(each) for each in listed[:1]]
    for each in slices:
        if len(ids) >= SAMPLES_MAX:
            break
        if not each.run.head.flags & IDS:
            some = islice(indexes(each.bits), SAMPLES_MAX - len(ids))
            ids += [format_item_id(each.run.head.run_id, index) for index in some]
    return tuple(ids)
