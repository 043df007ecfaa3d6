"""The audit: what the stores and the destinations have, against what the producer was told."""

from collections import Counter
from collections.abc import Iterable, Mapping

from actors.model.books import Totals
from tests.crash.destinations import Destination
from tests.crash.found import Found
from tests.crash.producer import Producer, Sent


class Audit:
    """Everything that was acknowledged is delivered, dead or held, and nothing else is.

    `ring` is the queue, if there is one, in which old runs make room for new ones.
    """

    def __init__(
        self, producer: Producer, destinations: Mapping[str, Destination], ring: str = ""
    ) -> None:
        self._producer = producer
        self._ring = ring
        self._destinations = destinations
        self.delivered: Counter[str] = Counter()
        self.found = Found()
        self.loses_power = False
        """Whether machines of this world lose power, and with it what was not synced."""
        self.may_be_deleted: set[str] = set()
        """Dead letters that somebody has asked to be removed."""
        producer.on_new = self._is_new

    @property
    def delivered_again(self) -> int:
        return sum(self.delivered.values()) - len(self.delivered)

    def _is_new(self, sent: Sent) -> None:
        """The daemon takes this run for one that it has never stored."""
        for item in sent.items:
            assert item not in self.found.live, f"{item} was held, and its run is new again"
            assert item not in self.found.dead, f"{item} was dead, and its run is new again"
            assert item not in self.delivered, f"{item} was delivered, and its run is new again"
            assert item not in self._producer.acked, f"{item} was stored, and its run is new again"

    def after_death(self, found: Found, in_hand_max: Mapping[str, int] | None = None) -> None:
        """`in_hand_max`: how many items of a queue were in hand at once, at most, and so can have
        been sent and not be recorded by the cold store. What the journal has not recorded is what
        it says is live, and that alone comes again."""
        producer = self._producer
        before, self.found = self.found, found
        may_come = before.live.keys() | producer.sent_now
        for queue, destination in self._destinations.items():
            came = destination.look(before)
            for item in came.tried:
                assert producer.queue_of[item] == queue
                assert item in may_come, f"{item} was settled before, and comes again"
            for item, payload in came.good.items():
                assert producer.payloads.get(item) == payload, f"{item} was never sent so"
                self.delivered[item] += 1
            in_hand = [item for item in came.good if item in found.in_cold]
            if in_hand_max is not None:
                assert len(in_hand) <= in_hand_max[queue], "more than was in hand comes again"
        for item, there in (found.live | found.dead).items():
            assert producer.payloads.get(item) == there.payload, f"{item} was never sent so"
            assert producer.queue_of[item] == there.queue
        for queue in self._destinations:
            self._balance(queue)

    def _balance(self, queue: str) -> None:
        producer = self._producer
        totals = self.found.books.get(queue, Totals())
        live = self.of(queue, self.found.live)
        dead = self.of(queue, self.found.dead)
        acked = self.of(queue, producer.acked)
        delivered = self.of(queue, self.delivered)
        unanswered = self.of(queue, producer.payloads) - acked
        missing = acked - delivered - live - dead
        settled = delivered - live - dead
        known = acked | delivered | live | dead

        assert totals.held == len(live), f"{queue}: {totals} and {len(live)} live items"
        assert totals.dead == len(dead)
        if queue != self._ring:
            deleted = missing & self.may_be_deleted
            missing -= deleted
            assert not missing, f"{queue}: {len(missing)} items are lost: {sorted(missing)[:5]}"
            assert totals.deleted == len(deleted)
            assert totals.dropped == 0
            assert totals.delivered == len(settled)
        else:
            # Delivered, killed before the mark was written, then dropped: in both counts.
            assert len(missing) <= totals.dropped <= len(missing) + len(settled | unanswered)
            assert totals.delivered <= len(settled)
        # A power cut may tear a block inside a group that was not acknowledged yet. Its items count
        # as accepted and lost, and the producer sends them again.
        assert totals.lost == 0 or self.loses_power
        accepted = totals.accepted - totals.lost
        assert len(known) <= accepted <= len(known | unanswered), (
            f"{queue}: {accepted} are accepted, {len(known)} known, {len(unanswered)} unanswered"
        )

    def of(self, queue: str, items: Iterable[str]) -> set[str]:
        queue_of = self._producer.queue_of
        return {item for item in items if queue_of[item] == queue}

    def at_the_end(self) -> None:
        """Everything was answered and drained: now the books are exact."""
        producer = self._producer
        assert not self.found.live
        for queue in self._destinations:
            totals = self.found.books.get(queue, Totals())
            acked = self.of(queue, producer.acked)
            delivered = self.of(queue, self.delivered)
            dead = self.of(queue, self.found.dead)
            assert delivered | dead <= acked
            assert not delivered & dead
            assert totals.accepted == len(acked)
            ends = totals.delivered + totals.dropped + totals.dead + totals.deleted + totals.lost
            assert ends == len(acked)
