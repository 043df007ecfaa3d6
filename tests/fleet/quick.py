"""`forebay`, with leases of workers and looks at warm that are as short as a test's patience.

A worker's lease lasts 30 s longer than any send, rows are compared with the shared queue every
30 s, a store is away for 10 s more if what it refused is not tried again, and no daemon is called
lost in the first 30 s: nobody wants to configure that, and no test can wait for it. Tests decide
themselves which row is old; a slow machine must not. Where the environment asks for it, it also
tells what it has in hand (witness.py).
"""

import os

import actors.fleet.members
import actors.ports.presence
import actors.tiers.shared_promoter
import actors.tiers.shared_warm
import actors.workers.sending
from daemon.cli.main import main
from tests.fleet import witness

actors.workers.sending.LEASE_MARGIN_S = 2.0  # type: ignore[misc]
actors.tiers.shared_promoter.RECONCILE_S = 2.0  # type: ignore[misc]
actors.tiers.shared_promoter.GRACE_S = 4.0  # type: ignore[misc]
actors.tiers.shared_promoter.LOST_S = 2.0  # type: ignore[misc]
actors.tiers.shared_warm.ENTER_MS = 2000  # type: ignore[misc]
actors.tiers.shared_warm.HOLD_S = 6.0  # type: ignore[misc]
actors.tiers.shared_warm.KEEP_S = 1.0  # type: ignore[misc]
actors.fleet.members.BEAT_S = 0.5  # type: ignore[misc]
actors.fleet.members.LOST_MS = 900_000  # type: ignore[misc]
actors.fleet.members.SETTLE_S = 2.0  # type: ignore[misc]
actors.ports.presence.QUIET_S = 1.0  # type: ignore[misc]

if witness.PATH in os.environ:
    witness.install()

if __name__ == "__main__":
    main()
