"""Triggers, composed: the book, the actor, and what it needs of streams, warm and the catalogue."""

from collections.abc import Awaitable, Callable, Sequence

from actors.config.catalogue import Catalogue, not_found
from actors.config.settings import Settings
from actors.config.trigger_book import TriggerBook
from actors.config.triggers import QueueTrigger, queue_triggers
from actors.cron.trigger_ports import TriggerPorts
from actors.cron.triggers import Triggers
from actors.model.clock import wall_ms
from actors.model.error_types import error_type
from actors.observers.events import TriggerFailed
from actors.ports.tiers import WarmQueue
from actors.tiers.router import Router
from actors.tiers.streams import Streams
from daemon.composition import Core
from daemon.state.kept_file import load_triggers, triggers_saver
from daemon.stores.open import Stores
from forebay.errors import BadRun, Refused
from forebay.priorities import resolve


def make_triggers(
    settings: Settings,
    core: Core,
    stores: Stores,
    has_come: Callable[[str], None],
    withdraw: Callable[[str], Awaitable[None]],
) -> Triggers:
    def check(trigger: QueueTrigger) -> int:
        return usable_trigger(trigger, core.catalogue)

    book = TriggerBook(
        queue_triggers(settings.triggers),
        load_triggers(settings.state_dir),
        triggers_saver(settings.state_dir),
        check,
    )

    def failed(name: str, queue: str, error: str) -> None:
        core.events.note(TriggerFailed(wall_ms(), name, queue, error))
        core.notifier.trigger_failed(name, error, queue)

    def dead(queue: str, error: str, items: int, ids: Sequence[str]) -> None:
        core.tallies.of(queue).died[error_type(error)] += items
        core.notifier.dead(queue, error, items, ids)

    ports = make_ports(
        core.streams,
        core.router,
        core.warm,
        core.catalogue,
        has_come,
        withdraw,
        failed,
        dead,
    )
    return Triggers(book, stores.cold.triggers, stores.daemon, ports, core.presence)


def make_ports(
    streams: Streams,
    router: Router,
    warm: WarmQueue,
    catalogue: Catalogue,
    has_come: Callable[[str], None],
    withdraw: Callable[[str], Awaitable[None]],
    failed: Callable[[str, str, str], None],
    dead: Callable[[str, str, int, Sequence[str]], None],
) -> TriggerPorts:
    async def hold(queue: str, consumer: str) -> None:
        # A claim of nothing: it begins the stream, and what is in warm is set aside.
        await streams.claim(queue, consumer, after=0, items=0)

    async def drop(queue: str, consumer: str) -> None:
        await streams.drop(queue, consumer)

    async def clear(queue: str) -> None:
        if (await warm.fill(queue)).waiting:
            await router.set_aside(queue)

    def except_flows(queue: str) -> frozenset[str] | None:
        return None if catalogue.is_paused(queue) else catalogue.paused_flows(queue)

    def retries_max(queue: str) -> int:
        return catalogue.settings_of(queue).max_retries

    seen = (streams.consumers, clear, except_flows)
    return TriggerPorts(hold, drop, *seen, has_come, withdraw, failed, retries_max, dead)


def usable_trigger(trigger: QueueTrigger, catalogue: Catalogue) -> int:
    """The priority of its jobs. Refused if a queue of it or its priority does not exist."""
    for queue in (trigger.queue, trigger.target):
        if catalogue.queue(queue) is None:
            raise not_found(queue)
    try:
        return resolve(trigger.priority, lambda: catalogue.priorities)
    except BadRun as problem:
        raise Refused("BAD_REQUEST", str(problem)) from problem
