"""The table of operations: everything that people can ask of the daemon."""

from collections.abc import Mapping
from typing import Final

from actors.control import breakers, configuration, fleet, keys, queues, streams, trials
from actors.control.operation import Operation

_OPERATIONS: Final = (
    *queues.OPERATIONS,
    *trials.OPERATIONS,
    *breakers.OPERATIONS,
    *keys.OPERATIONS,
    *streams.OPERATIONS,
    *fleet.OPERATIONS,
    *configuration.OPERATIONS,
)
OPERATIONS: Final[Mapping[str, type[Operation]]] = {
    operation.about.name: operation for operation in _OPERATIONS
}
