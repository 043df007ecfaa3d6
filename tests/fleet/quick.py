"""`forebay`, with leases of workers and looks of owners that are as short as a test's patience.

A worker's lease lasts 30 s longer than any send, an owner looks every 30 s whether what it entered
is still there, and a store is away for 10 s more if what it refused is not tried again: nobody
wants to configure that, and no test can wait for it. Where the environment asks for it, it also
tells what it has in hand (witness.py).
"""

import os

import actors.fleet.owner
import actors.ports.presence
import actors.workers.sending
from daemon.cli.main import main
from tests.fleet import witness

actors.workers.sending.LEASE_MARGIN_S = 2.0  # type: ignore[misc]
actors.fleet.owner.VERIFY_S = 2.0  # type: ignore[misc]
actors.ports.presence.QUIET_S = 1.0  # type: ignore[misc]

if witness.PATH in os.environ:
    witness.install()

if __name__ == "__main__":
    main()
