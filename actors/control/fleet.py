"""The fleet as operators see it."""

from collections.abc import Mapping

from actors.control.fields import Operation
from actors.fleet.fleet import FleetStores
from actors.spooler.client import SpoolerClient


class FleetControl:
    def __init__(self, stores: FleetStores, spooler: SpoolerClient) -> None:
        pass

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {}
