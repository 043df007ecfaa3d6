"""The suite of the `WarmQueue` port: an implementation runs all of it, each check on a new rig.

The time of a rig stands still, so that nothing comes due and no lease runs out by itself. Whether
a lease that has run out still counts until `expire` was called is left open. Beside these checks
an implementation plays the scripts of `warm_scripts`; one whose leases run on this host's clocks
runs the checks of `warm_steps` as well.
"""

from typing import Final

from tests.conformance import warm_flows, warm_leases, warm_moves, warm_places, warm_waits
from tests.conformance.warm_rig import Check

CHECKS: Final[tuple[Check, ...]] = (
    *warm_places.CHECKS,
    *warm_flows.CHECKS,
    *warm_leases.CHECKS,
    *warm_moves.CHECKS,
    *warm_waits.CHECKS,
)
