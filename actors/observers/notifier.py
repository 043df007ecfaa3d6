"""Notifications: tells people, by webhook or by an item in a queue, of what went wrong.

Owns what happened and was not told yet, a `Grouping` for each notification
(actors/observers/notices.py has the decisions), and a sender for each way out of it. What others
say (`settled`, `dead`, `trigger_failed`) is a plain call that adds to a list, once a batch: nobody
waits for it. Past `INCIDENTS_MAX` incidents are dropped and counted. For a batch of 10 slices such
a call takes 0.1 µs where nothing is configured, 2 µs where something is, and 120 µs if all of its
5,000 items are dead.

Each sender (actors/observers/notification_sending.py) has a task and a bounded line of its own, so
that a webhook that hangs holds up nobody else.

Nothing here is durable: the dead letters are, and these are words about them. On `close` what is
known is told without waiting for windows, within `LAST_S`; on cancel and in a crash it is lost.

What it can't do: tell of the dead letters of a queue that notices are pushed to, which could make
notices without end; or group what several daemons see: each speaks for itself.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog
import trio

from actors.config.notification_settings import NotificationSettings, WebhookSettings, notice_queues
from actors.model.error_types import error_type
from actors.model.masking import masked_address
from actors.model.slices import ERROR_TEXT_MAX
from actors.observers.events import NoticeMade
from actors.observers.notices import Grouping, Incident, Notice, dead_incidents
from actors.observers.notification_sending import Counts, Sender
from actors.observers.observers import Batch
from forebay.ids import format_run_id, new_run_id

log = structlog.get_logger()

INCIDENTS_MAX: Final = 1024
LINE_MIN: Final = 32
"""Notices that may wait for one sender: so many, or a minute's."""
QUIET_S: Final = 60.0
LAST_S: Final = 5.0


class Webhook(Protocol):
    async def post(self, notice_id: str, body: bytes) -> None:
        """Returns when it was taken, within the webhook's timeout; NotSent if it was not."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How the world is reached."""

    open_webhook: Callable[[WebhookSettings], Webhook]
    push: Callable[[str, str, bytes], Awaitable[None]]
    """Makes an item of a queue: (queue, notice id, payload). NotSent if it is not stored."""


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """One notification as it is in force."""

    settings: NotificationSettings
    grouping: Grouping
    counts: Mapping[str, Counts]
    senders: list[Sender] = field(default_factory=list)


class Notifier:
    def __init__(
        self,
        configured: Mapping[str, NotificationSettings],
        ways: Ways,
        now_ms: Callable[[], int],
        host: str,
        note: Callable[[NoticeMade], None] = lambda _: None,
    ) -> None:
        """`note` is told of every notice, for those who watch."""
        self._ways = ways
        self._now_ms = now_ms
        self._host = host
        self._note = note
        self._configured = configured
        self._told: dict[str, _Told] = {}
        self._incidents: list[Incident] = []
        self._woken = trio.Event()
        self._is_closing = False
        self._closed = trio.Event()
        self._dropped_at = -QUIET_S
        self.dropped_total = 0
        """Incidents nobody was told of, because too many came at once."""

    def figures(self) -> dict[str, Any]:
        by_name = {
            name: {
                "suppressed_total": told.grouping.suppressed_total,
                "sent_total": {way: counts.sent for way, counts in told.counts.items()},
                "failed_total": {way: counts.failed for way, counts in told.counts.items()},
            }
            for name, told in self._told.items()
        }
        return {"dropped_total": self.dropped_total, "by_name": by_name}

    # What others call.

    def settled(self, batch: Batch) -> None:
        if not self._configured or not any(conclusion.dead for _, conclusion in batch.pairs):
            return
        if self._wants_dead(batch.queue):
            self._add(dead_incidents(batch))

    def dead(self, queue: str, error: str, count: int = 1, ids: Sequence[str] = ()) -> None:
        """Items of a queue have become dead letters in another way than by a settled lease."""
        if self._wants_dead(queue):
            text, at_ms = error[:ERROR_TEXT_MAX], self._now_ms()
            self._add([Incident("dead", queue, error_type(text), text, count, tuple(ids), at_ms)])

    def trigger_failed(self, name: str, error: str, queue: str | None = None) -> None:
        """`queue`: the one that it polls, if it does."""
        if any(each.wants("trigger_failed", queue) for each in self._configured.values()):
            text, kind = error[:ERROR_TEXT_MAX], error_type(error)
            what = Incident("trigger_failed", name, kind, text, 1, (), self._now_ms(), queue)
            self._add([what])

    def reload(self, configured: Mapping[str, NotificationSettings]) -> None:
        """What is not changed goes on where it is; what is, begins anew."""
        self._configured = configured
        self._woken.set()

    async def close(self) -> None:
        """Nothing more happens; returns when what did is told, or given up."""
        self._is_closing = True
        self._woken.set()
        await self._closed.wait()

    def _wants_dead(self, queue: str) -> bool:
        if queue in notice_queues(self._configured):
            return False
        return any(each.wants("dead", queue) for each in self._configured.values())

    def _add(self, incidents: Sequence[Incident]) -> None:
        if len(self._incidents) + len(incidents) > INCIDENTS_MAX:
            now = trio.current_time()
            if now - self._dropped_at >= QUIET_S:
                log.warning("notifications.dropping", hint="more goes wrong than can be told")
            self._dropped_at = now
            self.dropped_total += len(incidents)
            return
        self._incidents += incidents
        self._woken.set()

    # The actor.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`."""
        try:
            async with trio.open_nursery() as nursery:
                self._install(nursery)
                task_status.started()
                while not self._is_closing:
                    with trio.move_on_at(self._next_at()):
                        await self._woken.wait()
                    self._woken = trio.Event()
                    self._install(nursery)
                    self._tell()
                nursery.cancel_scope.deadline = trio.current_time() + LAST_S
                self._tell(is_last=True)
                for told in self._told.values():
                    close_all(told)
        finally:
            self._closed.set()

    def _next_at(self) -> float:
        found = (told.grouping.next_at() for told in self._told.values())
        return min((at for at in found if at is not None), default=float("inf"))

    def _install(self, nursery: trio.Nursery) -> None:
        """Brings what is in force up to what is configured."""
        wanted = self._configured
        for name, told in list(self._told.items()):
            if wanted.get(name) != told.settings:
                close_all(self._told.pop(name))
        for name, settings in wanted.items():
            if name not in self._told:
                self._told[name] = told = self._make(name, settings)
                for sender in told.senders:
                    nursery.start_soon(sender.run)

    def _make(self, name: str, settings: NotificationSettings) -> _Told:
        gives: dict[str, Callable[[Notice], Awaitable[None]]] = {}
        if settings.webhook is not None:
            webhook = self._ways.open_webhook(settings.webhook)
            gives["webhook"] = lambda notice: webhook.post(notice.id, self._body(notice))
        if settings.queue is not None:
            queue = settings.queue
            gives["queue"] = lambda notice: self._ways.push(queue, notice.id, self._body(notice))
        told = _Told(settings, Grouping(name, settings), {way: Counts() for way in gives})
        for way, give in gives.items():
            counts, line_max = told.counts[way], max(LINE_MIN, settings.rate)
            told.senders.append(Sender(name, way, give, self._not_sent, counts, line_max))
        return told

    def _tell(self, *, is_last: bool = False) -> None:
        """Takes in what has happened, and hands out the notices whose time it is."""
        incidents, self._incidents = self._incidents, []
        now = trio.current_time()
        for told in self._told.values():
            for incident in incidents:
                if told.settings.wants(incident.occasion, incident.queue):
                    told.grouping.add(incident, now)
            for notice in told.grouping.due(now, new_notice_id, is_last=is_last):
                self._note(made(notice, self._now_ms()))
                for sender in told.senders:
                    sender.offer(notice)

    def _not_sent(self, notice: Notice, why: str) -> None:
        at_ms, name = self._now_ms(), notice.notification
        self._note(NoticeMade(at_ms, name, "not_sent", notice.source, notice.count, why))

    def _body(self, notice: Notice) -> bytes:
        fields = notice.fields() | {"host": self._host}
        for name in ("text", "error"):
            fields[name] = masked_address(fields[name])
        return json.dumps(fields, ensure_ascii=False).encode(errors="replace")


def close_all(told: _Told) -> None:
    for sender in told.senders:
        sender.close()


def made(notice: Notice, at_ms: int) -> NoticeMade:
    return NoticeMade(
        at_ms, notice.notification, notice.occasion, notice.source, notice.count, notice.error
    )


def new_notice_id() -> str:
    """Also the id of the run that is pushed, so that a push that is tried again is known."""
    return format_run_id(new_run_id())
