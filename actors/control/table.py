"""The table of operations: everything that people can ask of the daemon."""

from collections.abc import Mapping
from typing import Final

from actors.control import breakers, configuration, queues, trials
from actors.control.operation import Operation

_OPERATIONS: Final = (
    *queues.OPERATIONS,
    *trials.OPERATIONS,
    *breakers.OPERATIONS,
    *configuration.OPERATIONS,
)
OPERATIONS: Final[Mapping[str, type[Operation]]] = {
    operation.about.name: operation for operation in _OPERATIONS
}
