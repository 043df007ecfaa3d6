"""A cluster, as its clients see it: queues are where their slots are, and slots move.

The driver follows MOVED and ASK. While a slot is on its way, a script that has some of its keys
here and some there is refused by both nodes (TRYAGAIN), and the driver gives up after 0.4 s: here
it is tried until half of the step's time is over. Nothing is done twice by that: what was refused
was not done. A script that finds out only while it runs says so before it has changed anything
(daemon/stores/valkey/lua_state.py).

A slot that takes longer than that to move makes the queue unavailable, as any other
outage does. So does one primary that is away, until its replica stands in for it: for all queues,
since what a daemon does with them it does in one step.

After every fifth MOVED the driver would fetch the whole map, and first close all connections while
other steps use them. It is configured to follow each MOVED instead.
"""

import time
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import ClusterError, ResponseError

from daemon.stores.bridge import loop_sleep
from daemon.stores.valkey.url import ValkeyUrl

PAUSE_S: Final = 0.02
NOT_HERE: Final = "access a non local key"


class PatientCluster(RedisCluster):
    def __init__(self, url: ValkeyUrl, options: dict[str, Any], patience_s: float) -> None:
        self._patience_s = patience_s
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in url.addresses],
            ssl=url.has_tls,
            reinitialize_steps=0,
            **options | url.options,
        )

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return await super().execute_command(*args, **kwargs)
            except (ClusterError, ResponseError) as error:
                if not is_on_its_way(error):
                    raise
                if time.monotonic() >= until:
                    raise ClusterError(f"a slot is on its way to another node ({error})") from error
            await loop_sleep(PAUSE_S)


def is_on_its_way(error: Exception) -> bool:
    """The slot is between two nodes, and nothing was done."""
    # The driver says so, without a type of its own, when it was sent back and forth too often.
    return type(error) is ClusterError or NOT_HERE in str(error)
