"""What clients need of the configuration."""

from typing import ClassVar, Final

from pydantic import Field

from actors.control.actors import Actors
from actors.control.operation import About, Operation, View


class Priorities(View):
    priorities: dict[str, int] = Field(description="The number of each label, 0 to 255.")


class ShowPriorities(Operation):
    """Show the numbers that labels of priorities stand for.

    Labels are for people: a run has a number. Clients that take labels ask for this.
    """

    about: ClassVar = About("config.priorities", role="push", example={}, has_command=False)

    async def perform(self, actors: Actors) -> Priorities:
        return Priorities(priorities=dict(actors.catalogue.priorities))


OPERATIONS: Final = (ShowPriorities,)
