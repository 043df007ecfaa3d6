"""The suite of the `ColdQueue` port: what every cold store must do, whatever it is made of."""

from tests.conformance.cold_claims import ClaimSuite
from tests.conformance.cold_hand_over import HandOverSuite
from tests.conformance.cold_history import HistorySuite
from tests.conformance.cold_leases import LeaseSuite
from tests.conformance.cold_oldest import OldestSuite
from tests.conformance.cold_receipts import ReceiptSuite
from tests.conformance.cold_settling import SettleSuite


class ColdSuite(
    HandOverSuite, LeaseSuite, SettleSuite, ReceiptSuite, ClaimSuite, HistorySuite, OldestSuite
):
    """All of it."""
