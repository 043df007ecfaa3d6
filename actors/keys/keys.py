"""Keys: pushes to queues with unique keys, which the cold store decides.

This is the door of the package: it builds the intake of such pushes (actors/keys/intake.py). Items
of these queues are leased from the cold store on demand (actors/tiers/fetch.py), so that an item
that merely waits can always be replaced.
"""

import trio

from actors.config.catalogue import Catalogue
from actors.keys.intake import KeyedIntake
from actors.model.keys import KeyRule
from actors.spooler.messages import OfferRun
from actors.tiers.tiers import Tiers


class Keys:
    def __init__(self, tiers: Tiers, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._intake = KeyedIntake(tiers)
        tiers.cold.keep_keys(self.rule)

    @property
    def offers(self) -> trio.MemorySendChannel[OfferRun]:
        """Takes pushes to queues for which `is_keyed` is true."""
        return self._intake.offers

    def is_keyed(self, queue: str) -> bool:
        return self._catalogue.settings_of(queue).unique != "off"

    def rule(self, queue: str) -> KeyRule:
        settings = self._catalogue.settings_of(queue)
        return KeyRule(settings.unique, round(settings.unique_window * 1000))

    def figures(self) -> dict[str, int]:
        """Outcomes of items since the start, for STATS."""
        return self._intake.figures()

    async def run(self) -> None:
        """Runs until it is cancelled, after ingest has drained: every push is answered."""
        await self._intake.run()
