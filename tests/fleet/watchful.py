"""`forebay`, with leases of triggers, and looks at them, that are as short as a test's patience.

A daemon that runs a trigger is waited for by the others for 30 s, and all look every 5 s: nobody
wants to configure that, and no test can wait for it. Their proportions stay what they are.
"""

import actors.cron.trigger_jobs
import actors.cron.trigger_watch
import actors.cron.triggers
import actors.workers.sending
from daemon.cli.main import main

SHARE = 6
"""So much shorter is everything."""

for module in (actors.cron.trigger_watch, actors.cron.triggers, actors.cron.trigger_jobs):
    for name in ("LEASE_S", "LOOK_S", "LIVE_S"):
        if name in vars(module):
            vars(module)[name] = vars(module)[name] / SHARE

actors.workers.sending.LEASE_MARGIN_S = 2.0  # type: ignore[misc]

if __name__ == "__main__":
    main()
