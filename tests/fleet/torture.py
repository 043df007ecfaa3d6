"""The torture: a fleet under a fault each second, and books that balance all the same.

    python -m tests.fleet.torture --seconds 600 [--seed N]

Three daemons, one Valkey, one PostgreSQL. Four producers push without end, two of them to `plain`
in mixed priorities, two to `keyed`, where each key may be created once. When the time is over
everything is put right and drained. Then: nothing that was acknowledged is missing, everything that
was delivered had been accepted, the fleet's books say so to the item (one outcome of each was
accepted, and none of those that came too late), a key was created once, and what was delivered
twice was in hand at a fault.

In hand is an item from when a worker leases it until its owner has recorded what became of it; both
are told by the daemons themselves, each at the moment when it is so (witness.py), to within the
time that one step takes. A fault excuses a duplicate only if it befell somebody who had to do with
that item while it was in hand: the worker's host, the item's owner, whoever holds its row, or a
server that all of them need. That is exact up to two margins. A lease counts from when it was asked
for, a few milliseconds early. And a fault lasts until those whom it befell have found out, up to
`FOUND_OUT_S` after its end (faults.py): a daemon that could not renew its lock on a row hears of
that at the next try, a second later, and lends the row's items until then although another has
them. An item that was leased and recorded between two such times has no excuse, whatever else went
wrong meanwhile.
"""

import argparse
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay import Client, ForebayError, KeyOutcome
from tests.eventually import eventually_sync
from tests.fleet import witness
from tests.fleet.faults import Fault, Faults
from tests.fleet.landing import PATH
from tests.fleet.witness import Said
from tests.fleet.world import HASTE, World, world

HOSTS: Final = ("a", "b", "c")
KEYS: Final = 50_000
PAUSE_S: Final = 0.08
DRAIN_S: Final = 180.0


class Delivery(NamedTuple):
    at: float
    host: str
    id: str
    payload: str
    attempt: int


@dataclass(slots=True)
class Pushed:
    """What one producer has pushed, by payload: which names the producer and its host."""

    acknowledged: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Whose push failed: they are there, or not."""
    created: Counter[str] = field(default_factory=Counter)
    """By key."""
    failures: list[str] = field(default_factory=list)


class Producer(threading.Thread):
    def __init__(self, number: int, queue: str, fleet: World, seed: int) -> None:
        super().__init__(daemon=True)
        self.pushed = Pushed()
        self.stopping = threading.Event()
        self.queue = queue
        self._host = fleet.hosts[number % len(fleet.hosts)]
        self._name = f"{self._host.name}{number}"
        self._random = random.Random(seed + number)
        self._next = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with self._host.client(timeout=DRAIN_S) as client:
                    while not self.stopping.wait(PAUSE_S):
                        self._push(client)
            except ForebayError as error:
                self.pushed.failures.append(repr(error))

    def _push(self, client: Client) -> None:
        payloads = [self._payload() for _ in range(self._random.randint(1, 30))]
        self.pushed.unknown |= set(payloads)
        priority = self._random.choice((0, 5, 5, 5, 10))
        if self.queue == "keyed":
            outcomes = client.offer_batch(self.queue, [(p.split()[1], p) for p in payloads])
            for payload, outcome in zip(payloads, outcomes, strict=True):
                self.pushed.unknown.discard(payload)
                if outcome is KeyOutcome.CREATED:
                    self.pushed.acknowledged.add(payload)
                    self.pushed.created[payload.split()[1]] += 1
        else:
            client.push(self.queue, payloads, priority=priority)
            self.pushed.acknowledged |= set(payloads)
            self.pushed.unknown -= set(payloads)

    def _payload(self) -> str:
        self._next += 1
        return f"{self._name}-{self._next} k{self._random.randrange(KEYS)}"


def queues() -> dict[str, Any]:
    handler = {
        "type": "python",
        "function": "tests.fleet.landing:land",
        "batch": True,
        "batch_items": 40,
        "timeout": "1s",
    }
    queue = {
        "handler": handler,
        "warm_max_items": 400,
        "max_retries": 1000,
        "backoff": {"initial": "50ms", "max": "500ms"},
        "breaker": {"enabled": False},
        "workers": {"count": 2},
    }
    return {"plain": queue, "keyed": {**queue, "unique": "ignore", "unique_window": "1d"}}


def torture(seconds: float, seed: int) -> str:
    """What it was like, in a few lines; AssertionError if something does not hold."""
    with world() as fleet:
        for name in HOSTS:
            host = fleet.add(name, {"queues": queues()}, HASTE)
            host.variables = {
                PATH: str(host.directory / "landed"),
                witness.PATH: str(host.directory / "told"),
            }
            host.launch("--wait-for-stores")
        fleet.put_right()
        producers = [Producer(at, "keyed" if at % 2 else "plain", fleet, seed) for at in range(4)]
        faults = Faults(fleet, seed)
        for producer in producers:
            producer.start()
        faults.run(seconds)
        try:
            return settle(fleet, faults, producers)
        except BaseException:
            for fault in faults.done:
                print(time.strftime("%H:%M:%S", time.gmtime(fault.began)), fault)
            raise


def settle(fleet: World, faults: Faults, producers: list[Producer]) -> str:
    began = time.monotonic()
    assert not faults.problems, faults.problems
    fleet.put_right()
    for producer in producers:
        producer.stopping.set()
    for producer in producers:
        producer.join(DRAIN_S)
        assert not producer.is_alive(), "a push was never answered"
    wait_drained(fleet)
    drained_s = time.monotonic() - began
    lines = [f"{len(faults.done)} faults, drained in {drained_s:.1f} s"]
    told = witness.hear((host.name, Path(host.variables[witness.PATH])) for host in fleet.hosts)
    for queue in ("plain", "keyed"):
        pushed = [producer.pushed for producer in producers if producer.queue == queue]
        lines.append(check(queue, fleet, pushed, faults.done, told))
    return "\n".join(lines)


def wait_drained(fleet: World) -> None:
    def check() -> None:
        reports = [(host.name, host.stats()["queues"]) for host in fleet.hosts]
        held = [(name, queue) for name, queues in reports for queue in queues.items()]
        held = [(name, (queue, entry)) for name, (queue, entry) in held if entry["held"]]
        assert not held, held

    eventually_sync(check, deadline_s=DRAIN_S)


def check(queue: str, fleet: World, pushed: list[Pushed], faults: list[Fault], told: Said) -> str:
    acknowledged = set().union(*(one.acknowledged for one in pushed))
    unknown = set().union(*(one.unknown for one in pushed))
    deliveries = list(landed(fleet, queue))
    payloads = {delivery.payload for delivery in deliveries}
    ids: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in sorted(deliveries):
        ids[delivery.id].append(delivery)

    missing = acknowledged - payloads
    assert not missing, f"{len(missing)} acknowledged items are missing: {sorted(missing)[:5]}"
    strange = payloads - acknowledged - unknown
    assert not strange, f"{len(strange)} items were never accepted: {sorted(strange)[:5]}"
    assert len(ids) == len(payloads), "an item was stored under two ids"
    books = fleet.books(queue)
    assert books["accepted"] == books["delivered"] == len(ids), f"{books}, {len(ids)} items"
    ends = ("dead", "dropped", "deleted", "lost", "held")
    assert not any(books[end] for end in ends), books
    if queue == "keyed":
        check_keys(pushed, payloads)
    twice = {at: many for at, many in ids.items() if len(many) > 1}
    for many in twice.values():
        check_excused(many, faults, told)
    again = sum(len(many) - 1 for many in twice.values())
    return f"{queue}: {len(ids)} items, {again} deliveries again, of {len(twice)} items"


def check_keys(pushed: list[Pushed], payloads: set[str]) -> None:
    created = sum((one.created for one in pushed), Counter())
    assert set(created.values()) <= {1}, "a key was created twice"
    keys = Counter(payload.split()[1] for payload in payloads)
    assert set(keys.values()) <= {1}, "two items of a key were delivered"


def check_excused(many: list[Delivery], faults: list[Fault], told: Said) -> None:
    """Before each delivery but the first the item was in hand when something befell somebody who
    had to do with it."""
    for delivery, again in pairwise(many):
        if again.attempt > delivery.attempt:
            # The function took longer than its timeout: that attempt has failed.
            continue
        assert any(
            fault.target in concerned and fault.began <= last and fault.over >= first
            for concerned, first, last in in_hand(delivery, again, told)
            for fault in faults
        ), f"delivered again without a reason: {many}, {told_of(delivery.id, told)}"


def in_hand(
    delivery: Delivery, again: Delivery, told: Said
) -> Iterator[tuple[set[str], float, float]]:
    """Who had to do with the item, from when until when, each time that it was in hand before it
    was delivered again."""
    recorded = sorted(told.recorded.get(delivery.id, ()))
    for held in told.held.get(delivery.id, ()):
        if held.began > again.at:
            continue
        # A row in the shared warm queue is held by no host. The payload of an item of a journal
        # begins with the name of the host to which it was pushed.
        owner = told.holders.get(held.lock, held.host) if held.lock else delivery.payload[0]
        ended = next((at for at in recorded if at >= held.began), again.at)
        # What happened after it was delivered again is not the reason.
        servers = {"valkey", "postgres"}
        yield {held.host, owner, *servers}, held.began, min(ended, again.at)


def told_of(item: str, told: Said) -> str:
    return f"held {told.held.get(item)}, recorded {told.recorded.get(item)}"


def landed(fleet: World, queue: str) -> Iterator[Delivery]:
    for host in fleet.hosts:
        path = Path(host.variables[PATH])
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"}\n"):
                batch = json.loads(line)
                if batch["queue"] == queue:
                    columns = (batch["ids"], batch["payloads"], batch["attempts"])
                    for item in zip(*columns, strict=True):
                        yield Delivery(batch["at"], host.name, *item)


def main() -> None:
    parser = argparse.ArgumentParser(description="A fleet under a fault each second.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=new_seed())
    given = parser.parse_args()
    print(f"FOREBAY_SEED={given.seed}", flush=True)
    print(torture(given.seconds, given.seed))


def new_seed() -> int:
    return int(os.environ.get("FOREBAY_SEED") or random.randrange(2**32))


if __name__ == "__main__":
    main()
