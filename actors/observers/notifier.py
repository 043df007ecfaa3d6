"""Notifications: reports failures to people, by webhook or by an item in a queue.

It owns the incidents that are not reported yet, one `Grouping` per notification
(actors/observers/notices.py decides), and one sender per channel. Other actors report incidents
(`settled`, `dead`, `trigger_failed`) with a plain call that adds to a list, once per batch: they
never wait. Past `INCIDENTS_MAX` incidents are dropped and counted. For a batch of 10 slices such a
call takes 0.1 µs without notifications, 2 µs with one, and 120 µs if all of its 5,000 items are
dead.

Each sender (actors/observers/notifier.py) has its own task and bounded line, so that a
webhook that hangs delays no other.

Nothing here is durable: the dead letters are, and notices only report them. On `close` known
incidents are reported within `LAST_S`, without waiting for windows; on cancel and in a crash they
are lost.

It does not report dead letters of a queue that receives notices, which could cause an endless loop,
and it does not group incidents of several daemons: each reports its own.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog
import trio

from actors.config.observers import NotificationSettings, WebhookSettings, notice_queues
from actors.model.clock import Clock
from actors.model.error_types import error_type
from actors.model.masking import masked_address
from actors.model.slices import ERROR_TEXT_MAX
from actors.observers.batch import Batch
from actors.observers.events import NoticeMade
from actors.observers.notices import Grouping, Incident, Notice, dead_incidents
from forebay.ids import format_run_id, new_run_id

PAUSES_S: Final = (1.0, 5.0, 25.0)
PAUSE_S_MAX: Final = 60.0
"""The longest pause that a receiver can ask for."""


class NotSent(Exception):
    """The text says why a notice was not accepted."""

    def __init__(self, text: str, *, is_final: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.is_final = is_final
        """A retry would fail as well."""
        self.pause_s = pause_s
        """The pause that the receiver asks for."""


@dataclass(slots=True)
class Counts:
    """Counts of one channel of one notification."""

    sent: int = 0
    failed: int = 0


class NoticeSender:
    """One channel: gives notices to one receiver, in order."""

    def __init__(
        self,
        notification: str,
        way: str,
        give: Callable[[Notice], Awaitable[None]],
        failed: Callable[[Notice, str], None],
        counts: Counts,
        line_max: int,
    ) -> None:
        self._names = {"notification": notification, "way": way}
        self._give = give
        self._failed = failed
        self._counts = counts
        self._is_failing = False
        self._line, self._inbox = trio.open_memory_channel[Notice](line_max)

    def offer(self, notice: Notice) -> None:
        try:
            self._line.send_nowait(notice)
        except trio.WouldBlock:
            self._give_up(notice, "too many notices wait to be sent")

    def close(self) -> None:
        """Accepts no more notices; waiting ones are still sent."""
        self._line.close()

    async def run(self) -> None:
        async for notice in self._inbox:
            await self._send(notice)

    async def _send(self, notice: Notice) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await self._give(notice)
            except NotSent as problem:
                if problem.is_final or pause_s is None:
                    self._give_up(notice, str(problem))
                    return
                await trio.sleep(max(pause_s, min(problem.pause_s, PAUSE_S_MAX)))
            else:
                self._counts.sent += 1
                if self._is_failing:
                    log.info("notifications.sent_again", **self._names)
                self._is_failing = False
                return

    def _give_up(self, notice: Notice, why: str) -> None:
        self._counts.failed += 1
        if not self._is_failing:
            log.error("notifications.not_sent", **self._names, error=why)
        self._is_failing = True
        self._failed(notice, why)


log = structlog.get_logger()

INCIDENTS_MAX: Final = 1024
LINE_MIN: Final = 32
"""How many notices may wait for one sender: this many, or one minute's worth."""
QUIET_S: Final = 60.0
LAST_S: Final = 5.0


class Webhook(Protocol):
    async def post(self, notice_id: str, body: bytes) -> None:
        """Returns when it was accepted, within the webhook's timeout; raises NotSent if not."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The channels out of the daemon."""

    open_webhook: Callable[[WebhookSettings], Webhook]
    push: Callable[[str, str, bytes], Awaitable[None]]
    """Makes an item of a queue: (queue, notice id, payload). Raises NotSent if it is not stored."""


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """One notification in force."""

    settings: NotificationSettings
    grouping: Grouping
    counts: Mapping[str, Counts]
    senders: list[NoticeSender] = field(default_factory=list)


class Notifier:
    def __init__(
        self,
        configured: Mapping[str, NotificationSettings],
        ways: Ways,
        now_ms: Clock,
        host: str,
        note: Callable[[NoticeMade], None] = lambda _: None,
    ) -> None:
        """`note` is called with every notice, for the event log."""
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
        """Incidents that were never reported because too many came at once."""

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

    # Called by other actors.

    def settled(self, batch: Batch) -> None:
        if not self._configured or not any(conclusion.dead for _, conclusion in batch.pairs):
            return
        if self._wants_dead(batch.queue):
            self._add(dead_incidents(batch))

    def dead(self, queue: str, error: str, count: int = 1, ids: Sequence[str] = ()) -> None:
        """Reports dead letters that did not come from a settled lease."""
        if self._wants_dead(queue):
            text, at_ms = error[:ERROR_TEXT_MAX], self._now_ms()
            self._add([Incident("dead", queue, error_type(text), text, count, tuple(ids), at_ms)])

    def trigger_failed(self, name: str, error: str, queue: str | None = None) -> None:
        """`queue`: the queue that the trigger polls, if any."""
        if any(each.wants("trigger_failed", queue) for each in self._configured.values()):
            text, kind = error[:ERROR_TEXT_MAX], error_type(error)
            what = Incident("trigger_failed", name, kind, text, 1, (), self._now_ms(), queue)
            self._add([what])

    def reload(self, configured: Mapping[str, NotificationSettings]) -> None:
        """Unchanged notifications continue; changed ones begin anew."""
        self._configured = configured
        self._woken.set()

    async def close(self) -> None:
        """Accepts no more incidents; returns when all are reported or given up."""
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
                log.warning("notifications.dropping", hint="too many failures to report them all")
            self._dropped_at = now
            self.dropped_total += len(incidents)
            return
        self._incidents += incidents
        self._woken.set()

    # The actor.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until `close`."""
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
        """Makes the notifications in force match the configuration."""
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
            told.senders.append(NoticeSender(name, way, give, self._not_sent, counts, line_max))
        return told

    def _tell(self, *, is_last: bool = False) -> None:
        """Groups new incidents and hands out the notices that are due."""
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
    """Also the id of the pushed run, so that a repeated push is recognised."""
    return format_run_id(new_run_id())
