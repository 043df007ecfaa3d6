"""`forebay`, with leases of workers and looks of owners that are as short as a test's patience.

A worker's lease lasts 30 s longer than any send, an owner looks every 30 s whether what it entered
is still there, and a store is away for 10 s more if what it refused is not tried again: nobody
wants to configure that, and no test can wait for it.
"""

import actors.owner
import actors.presence
import actors.workers
from daemon.cli.main import main

actors.workers.LEASE_MARGIN_S = 2.0  # type: ignore[misc]
actors.owner.VERIFY_S = 2.0  # type: ignore[misc]
actors.presence.QUIET_S = 1.0  # type: ignore[misc]

if __name__ == "__main__":
    main()
