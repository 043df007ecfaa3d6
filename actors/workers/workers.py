"""Workers: leases from warm, sends to destinations, settles the outcomes.

This is the door of the package: it builds dispatch with its groups of workers, pull for consumers,
the breakers of the destinations and the settlement that both report to.

daemon/app.py starts settlement before anything is leased, and ends it after everything is settled.
On cancel outcomes that are not recorded yet are lost, and the owners deliver again.
"""

import os
import socket
from collections.abc import Iterator
from typing import Any

from actors.breaker.breaker import Breakers
from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.observers.observers import Observers
from actors.tiers.tiers import Tiers
from actors.workers.dispatch import Dispatch, OpenHandler
from actors.workers.pull import Pull
from actors.workers.pull_reports import PullSettling
from actors.workers.rate import FleetRate, SendLimit
from actors.workers.sending import Task, WorkerShared
from actors.workers.settlement import Settlement


class Workers:
    def __init__(
        self,
        settings: Settings,
        tiers: Tiers,
        catalogue: Catalogue,
        observers: Observers,
        open_handler: OpenHandler,
        fleet_rate: FleetRate | None,
    ) -> None:
        """`open_handler` raises HandlerUnusable. `fleet_rate`: the token buckets that daemons
        share; None: this daemon's rates are its own."""
        now_ms, host = tiers.now_ms, socket.gethostname()
        self.open_handler = open_handler
        self.breakers = Breakers(observers.events.note)
        self.settlement = Settlement(tiers, observers)
        self.send_limit = SendLimit(settings.global_send_limit)
        shared = WorkerShared(
            warm=tiers.warm,
            settlement=self.settlement,
            breakers=self.breakers,
            send_limit=self.send_limit,
            now_ms=now_ms,
            events=observers.events,
            tallies=observers.tallies,
            cores=len(os.sched_getaffinity(0)),
            host=host,
        )
        self.dispatch = Dispatch(tiers, catalogue, shared, open_handler, fleet_rate)
        settling = PullSettling(self.settlement, catalogue, now_ms)
        self.pull = Pull(tiers.warm, settling, catalogue, observers.tallies, now_ms, host)

    def tasks(self) -> Iterator[Task]:
        """What workers and consumers are working on at this moment."""
        for group in self.dispatch.groups():
            yield from group.tasks()
        yield from self.pull.tasks()

    def destinations(self) -> dict[str, str]:
        """Where each queue that has workers delivers to."""
        return {group.queue: group.destination for group in self.dispatch.groups()}

    def figures(self) -> dict[str, Any]:
        """For STATS."""
        return {
            "workers": {group.queue: group.figures() for group in self.dispatch.groups()},
            "breakers": {
                destination: {
                    "state": figures.phase,
                    "failures": figures.failures,
                    "opened_total": figures.opened_total,
                }
                for destination, figures in sorted(self.breakers.figures().items())
            },
            "stale_outcomes_total": self.settlement.stale_total,
        }
