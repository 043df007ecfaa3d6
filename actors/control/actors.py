"""What an operation may use: the doors of the actors."""

from dataclasses import dataclass

from actors.config.catalogue import Catalogue
from actors.cron.cron import Cron
from actors.fleet.fleet import Fleet
from actors.metrics.metrics import Metrics
from actors.tiers.tiers import Tiers
from actors.workers.workers import Workers


@dataclass(frozen=True, slots=True)
class Actors:
    catalogue: Catalogue
    tiers: Tiers
    workers: Workers
    cron: Cron
    fleet: Fleet
    metrics: Metrics
