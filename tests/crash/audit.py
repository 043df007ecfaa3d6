"""The audit: what lies in the spool and at the destination, against what the producer was told."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from structlog.testing import capture_logs

from actors.books import Books, Totals, merge
from actors.messages import StoredRun
from actors.ports import Damage
from actors.settings import SpoolSettings
from daemon.journal.journal import Journal
from forebay.run import Run
from tests.crash.named_files import QuickFiles
from tests.crash.producer import Producer, Sent


@dataclass(slots=True)
class Found:
    """What a recovery makes of a spool, every live item read."""

    books: Books = field(default_factory=dict)
    live: dict[str, bytes] = field(default_factory=dict)
    queue_of: dict[str, str] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)


def look_into(spool: Path, settings: SpoolSettings, copy: Path) -> Found:
    """Recovers a copy of the spool; the spool itself stays as the dead daemon left it."""
    found = Found()
    if not spool.exists():
        return found
    shutil.copytree(spool, copy)
    with capture_logs():
        journal = Journal(QuickFiles(copy), settings)
        recovered = journal.recover(0, lambda done, chunks: None)
        found.damage = recovered.damage
        merge(found.books, recovered.base)
        for chunk in recovered.chunks:
            merge(found.books, chunk.totals)
            for live in chunk.live:
                (run,) = journal.read([(chunk.number, live.place)])
                assert isinstance(run, StoredRun), f"a live run cannot be read: {run}"
                _enter(found, run, live.done)
    shutil.rmtree(copy)
    return found


def _enter(found: Found, stored: StoredRun, done: int) -> None:
    run = Run(stored.head, stored.data)
    for index, (item, payload) in enumerate(zip(run.item_ids(), run.payloads(), strict=True)):
        if not done >> index & 1:
            assert item not in found.live, f"{item} is stored twice"
            found.live[item] = payload
            found.queue_of[item] = run.head.queue


class Destination:
    """What a file handler has written, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._rest = b""
        self._cut: set[bytes] = set()

    def new_items(self) -> dict[str, bytes]:
        """The items that were delivered since the last look, when the daemon was alive."""
        if not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        items: dict[str, bytes] = {}
        for line in lines:
            if line in self._cut:
                continue
            item = json.loads(line)
            assert item["id"] not in items, f"{item['id']} was delivered twice by one daemon"
            items[item["id"]] = item["payload"].encode()
        if self._rest:
            self._cut.add(self._rest)
        return items


class Audit:
    """Everything that was acknowledged is delivered or held, and nothing else is.

    `ring` is the queue, if there is one, in which old runs make room for new ones.
    """

    def __init__(self, producer: Producer, outputs: dict[str, Path], ring: str = "") -> None:
        self._producer = producer
        self._ring = ring
        self._destinations = {queue: Destination(path) for queue, path in outputs.items()}
        self.delivered: Counter[str] = Counter()
        self.found = Found()
        producer.on_new = self._is_new

    @property
    def delivered_again(self) -> int:
        return sum(self.delivered.values()) - len(self.delivered)

    def _is_new(self, sent: Sent) -> None:
        """The daemon takes this run for one that it has never stored."""
        for item in sent.items:
            assert item not in self.found.live, f"{item} was held, and its run is new again"
            assert item not in self.delivered, f"{item} was delivered, and its run is new again"
            assert item not in self._producer.acked, f"{item} was stored, and its run is new again"

    def after_death(self, found: Found) -> None:
        producer = self._producer
        may_come = self.found.live.keys() | producer.sent_now
        self.found = found
        for queue, destination in self._destinations.items():
            for item, payload in destination.new_items().items():
                assert producer.payloads.get(item) == payload, f"{item} was never sent so"
                assert producer.queue_of[item] == queue
                assert item in may_come, f"{item} was settled before, and is delivered again"
                self.delivered[item] += 1
        for item, payload in found.live.items():
            assert producer.payloads.get(item) == payload, f"{item} was never sent so"
            assert producer.queue_of[item] == found.queue_of[item]
        for queue in self._destinations:
            self._balance(queue)

    def _balance(self, queue: str) -> None:
        producer = self._producer
        totals = self.found.books.get(queue, Totals())
        live = self._of(queue, self.found.live.keys())
        acked = self._of(queue, producer.acked)
        delivered = self._of(queue, self.delivered.keys())
        unanswered = self._of(queue, producer.payloads.keys()) - acked
        missing = acked - delivered - live
        settled = delivered - live
        known = acked | delivered | live

        assert totals.held == len(live), f"{queue}: {totals} and {len(live)} live items"
        if queue != self._ring:
            assert not missing, f"{queue}: {len(missing)} items are lost: {sorted(missing)[:5]}"
            assert totals.dropped == 0
            assert totals.delivered == len(settled)
        else:
            # Delivered, killed before the mark was written, then dropped: in both counts.
            assert len(missing) <= totals.dropped <= len(missing) + len(settled | unanswered)
            assert totals.delivered <= len(settled)
        assert len(known) <= totals.accepted <= len(known | unanswered), (
            f"{queue}: {totals.accepted} are accepted, {len(known)} known, "
            f"{len(unanswered)} unanswered"
        )

    def _of(self, queue: str, items: Iterable[str]) -> set[str]:
        queue_of = self._producer.queue_of
        return {item for item in items if queue_of[item] == queue}

    def at_the_end(self) -> None:
        """Everything was answered and drained: now the books are exact."""
        producer = self._producer
        assert not self.found.live
        for queue in self._destinations:
            totals = self.found.books.get(queue, Totals())
            acked = self._of(queue, producer.acked)
            delivered = self._of(queue, self.delivered.keys())
            assert delivered <= acked
            assert totals.accepted == len(acked)
            assert totals.delivered + totals.dropped == len(acked)
