"""A consumer that acknowledges in every way there is, and remembers what was answered.

It leases first and acknowledges then, one request after the other, so that a test can kill the
daemon the moment the last answer has come. An item whose acknowledgement was answered must never
come again; one whose answer was lost may.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, Self

import httpx

from actors.model.slices import indexes, item_bits
from forebay import wire
from forebay.lease_frames import (
    LeasedRun,
    LeaseReport,
    LeaseWish,
    Part,
    What,
    pack_lease,
    pack_settle,
    read_leased,
    read_statuses,
)
from forebay.link import Link, Lost
from forebay.run import Run, read_head
from forebay.wire import Kind
from tests.crash.producer import ANSWER_S, Died

ITEMS: Final = 4
"""Leased in each way, at a time."""

Ack = Callable[[], None]


class Asking:
    """A connection that says one thing at a time. Died: the daemon did."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sequence = 0

    @classmethod
    def to(cls, socket: Path) -> Self:
        try:
            return cls(Link(socket, "crash test", monotonic() + ANSWER_S))
        except Lost as lost:
            raise Died from lost

    def close(self) -> None:
        self._link.close()

    def lease(self, queue: str, items: int, *, keep: bool = False) -> list[LeasedRun]:
        wish = LeaseWish(queue, items, keep=keep)
        return read_leased(self._ask(Kind.LEASE, pack_lease(wish)))

    def settle(self, queue: str, reports: Sequence[LeaseReport]) -> None:
        """Returns when all of it counts."""
        assert all(read_statuses(self._ask(Kind.SETTLE, pack_settle(queue, reports))))

    def _ask(self, kind: Kind, body: bytes) -> bytes:
        self._sequence += 1
        try:
            self._link.send([wire.frame(kind, self._sequence, body)], monotonic() + ANSWER_S)
            while True:
                frames = self._link.receive(ANSWER_S)
                assert frames, "the daemon neither answers nor dies"
                for answer, sequence, content in frames:
                    if sequence == self._sequence:
                        if answer is Kind.ERROR:
                            raise wire.read_error(content)
                        return content
        except Lost as lost:
            raise Died from lost


class Acker:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.acked: set[str] = set()
        self.answers = 0

    def work(
        self, socket: Path, *, pulled: Iterable[str], by_lock: Iterable[str], http: str = ""
    ) -> None:
        """Leases from all of these queues, and acknowledges some of it, over REST too if that is
        there. Died: the daemon did, meanwhile."""
        with closing(Asking.to(socket)) as one, closing(Asking.to(socket)) as other:
            acks: list[Ack] = []
            for queue in pulled:
                if http:
                    acks += self._take_by_rest(http, queue)
                acks += self._take(one, queue)
            for queue in by_lock:
                acks += self._poll(one, other, queue)
            self._rng.shuffle(acks)
            for ack in acks:
                ack()
                self.answers += 1

    def drain(self, socket: Path, queue: str) -> set[str]:
        """Takes all that is due; its ids."""
        found: set[str] = set()
        with closing(Asking.to(socket)) as asking:
            while leased := asking.lease(queue, 1000):
                found |= {item for run in leased for item in self._items(run)}
                asking.settle(queue, [LeaseReport(run.token, (DONE,)) for run in leased])
        return found

    def _take(self, asking: Asking, queue: str) -> list[Ack]:
        """Of each run some items are delivered, some fail for good, and the rest is given back."""
        leased = asking.lease(queue, ITEMS)
        reports: list[LeaseReport] = []
        decided: set[str] = set()
        for run in leased:
            items = self._items(run)
            delivered = failed = 0
            for index, item in enumerate(items):
                fate = self._rng.choice(("delivered", "delivered", "failed", "released"))
                delivered |= (fate == "delivered") << index
                failed |= (fate == "failed") << index
                if fate != "released":
                    decided.add(item)
            parts = [Part(What.DELIVERED, delivered)] if delivered else []
            if failed:
                parts.append(Part(What.FAILED, failed, "no", is_permanent=True))
            reports.append(LeaseReport(run.token, tuple(parts)))

        def say() -> None:
            asking.settle(queue, reports)
            self.acked |= decided

        return [say] if leased else []

    def _poll(self, polling: Asking, acking: Asking, queue: str) -> list[Ack]:
        """One connection leases, and another one acknowledges."""
        acks: list[Ack] = []
        for items in (1, ITEMS):
            leased = polling.lease(queue, items, keep=True)
            reports = [LeaseReport(run.token, (DONE,)) for run in leased]
            ids = {item for run in leased for item in self._items(run)}

            def say(reports: list[LeaseReport] = reports, ids: set[str] = ids) -> None:
                acking.settle(queue, reports)
                self.acked |= ids

            if leased:
                acks.append(say)
        return acks

    def _take_by_rest(self, http: str, queue: str) -> list[Ack]:
        answer = httpx.get(f"{http}/api/queue-items/next", params={"queue": queue})
        if answer.status_code == httpx.codes.NO_CONTENT:
            return []
        leased = answer.raise_for_status().json()
        self._check([leased["id"]])

        def say() -> None:
            path = f"{http}/api/queue-items/{leased['id']}/ack"
            httpx.post(path, json={"token": leased["token"]}).raise_for_status()
            self.acked.add(leased["id"])

        return [say]

    def _items(self, leased: LeasedRun) -> list[str]:
        """The ids of its items, in order; none of them was acknowledged before."""
        run = Run(read_head(leased.run), leased.run)
        ids = run.item_ids()
        items = [ids[index] for index in indexes(leased.bits or item_bits(0, run.head.count))]
        self._check(items)
        return items

    def _check(self, ids: Iterable[str]) -> None:
        again = self.acked & set(ids)
        assert not again, f"acknowledged, and delivered again: {sorted(again)}"


DONE: Final = Part(What.DELIVERED)
