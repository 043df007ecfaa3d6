"""`forebay`, with leases of workers and looks of owners that are as short as a test's patience.

A worker's lease lasts 30 s longer than any send, and an owner looks every 30 s whether what it
entered is still there: nobody wants to configure that, and no test can wait for it.
"""

import actors.owner
import actors.workers
from daemon.cli.main import main

actors.workers.LEASE_MARGIN_S = 2.0  # type: ignore[misc]
actors.owner.VERIFY_S = 2.0  # type: ignore[misc]

if __name__ == "__main__":
    main()
