"""What the triggers need from other actors: streams, warm, the catalogue, items, observers."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from actors.config.catalogue import Catalogue
from actors.observers.observers import Observers
from actors.tiers.tiers import Tiers


class Withdrawing(Protocol):
    async def withdraw(self, item_id: str) -> None:
        """Deletes a waiting item on behalf of the daemon. Raises Refused if it is leased or
        dead."""


class TriggerPorts:
    def __init__(
        self, tiers: Tiers, catalogue: Catalogue, observers: Observers, items: Withdrawing
    ) -> None:
        self._tiers = tiers
        self._catalogue = catalogue
        self._observers = observers
        self._items = items

    async def hold(self, queue: str, consumer: str) -> None:
        """Puts a queue into stream mode for a consumer; repeating it changes nothing."""
        # A claim of nothing begins the stream, and slices in warm are set aside.
        await self._tiers.streams.claim(queue, consumer, after=0, items=0)

    async def drop(self, queue: str, consumer: str) -> None:
        """Forgets a consumer; the items it had claimed are given back."""
        await self._tiers.streams.drop(queue, consumer)

    def consumers(self) -> Iterable[tuple[str, str]]:
        """The queues in stream mode here, each with its consumer."""
        return self._tiers.streams.consumers()

    async def clear(self, queue: str) -> None:
        """Moves slices that wait in warm to the cold store."""
        if (await self._tiers.warm.fill(queue)).waiting:
            await self._tiers.set_aside(queue)

    def except_flows(self, queue: str) -> frozenset[str] | None:
        """The paused flows of a queue; None: the whole queue is paused."""
        return self._catalogue.except_flows(queue)

    def has_come(self, queue: str) -> None:
        """Announces that a queue has new items in the cold store."""
        self._tiers.announce(queue)

    async def withdraw(self, item_id: str) -> None:
        """Deletes a waiting job item. Raises Refused if it is leased or dead."""
        await self._items.withdraw(item_id)

    def failed(self, name: str, queue: str, error: str) -> None:
        self._observers.trigger_failed(name, queue, error)

    def retries_max(self, queue: str) -> int:
        """How many times an item of a queue may fail and still be retried."""
        return self._catalogue.settings_of(queue).max_retries

    def dead(self, queue: str, error: str, items: int, ids: Sequence[str]) -> None:
        """Items of a queue became dead letters; `ids` has some of them."""
        self._observers.died(queue, error, items, ids)
