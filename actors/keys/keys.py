"""Keys: pushes to queues with unique keys, which the cold store decides.

This is the door of the package: it builds the intake of such pushes (actors/keys/intake.py), the
step that takes replaceable items back from warm, and, where daemons share the cold store, the
recalls of what other daemons hold.
"""

from typing import Final

import trio

from actors.config.catalogue import Catalogue
from actors.keys.intake import KeyedIntake
from actors.keys.recall import Recalling, Recalls
from actors.keys.take_back import TakingBack
from actors.model.keys import KeyRule
from actors.spooler.messages import OfferRun
from actors.tiers.tiers import Tiers

RECALL_STEPS: Final = ("asked", "answer")


class Keys:
    def __init__(self, tiers: Tiers, catalogue: Catalogue, recalls: Recalls | None) -> None:
        """`recalls`: how daemons that share the cold store ask each other; None: they do not."""
        self._catalogue = catalogue
        self._recalling: Recalling | None = None
        if recalls is not None:
            self._recalling = Recalling(tiers.watch(recalls, RECALL_STEPS))
        self._taking_back = TakingBack(tiers, self.rule, self._recalling)
        self._intake = KeyedIntake(tiers, self._taking_back)
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

    def hear(self, said: str) -> None:
        """Another daemon's wake, which may be about recalls."""
        if self._recalling is not None:
            self._recalling.wake(said)

    def figures(self) -> dict[str, int]:
        """Outcomes of items since the start, for STATS."""
        return self._intake.figures()

    async def run(self) -> None:
        """Runs until it is cancelled, after ingest has drained: every push is answered."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._intake.run)
            if self._recalling is not None:
                nursery.start_soon(self._recalling.run, self._taking_back.take_back)
