"""Sentinels, who are asked with every new connection which server is the primary.

They are asked one after the other, and the one that knew is asked first the next time. One that
says nothing has its share of the step's time, not all of it, so that the next can still be asked.
What each of them said stands in the error: the driver's own prints its clients instead.
"""

from typing import Any

import redis.asyncio as driver
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import TimeoutError as TooLate

from daemon.stores.valkey.url import ValkeyUrl


class Sentinels(Sentinel):
    def __init__(self, url: ValkeyUrl, options: dict[str, Any], timeout_s: float) -> None:
        """`options`: the driver's, of the servers; those of Sentinels are in the URL."""
        each_s = timeout_s / (len(url.addresses) + 1)
        super().__init__(  # type: ignore[no-untyped-call]
            url.addresses,
            sentinel_kwargs={
                "socket_timeout": each_s,
                "socket_connect_timeout": each_s,
                "retry": options["retry"],
                "protocol": options["protocol"],
                **url.of_sentinels,
            },
        )
        self._primary: driver.Redis = self.master_for(url.service, **options | url.options)

    @property
    def primary(self) -> driver.Redis:
        return self._primary

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        said: list[str] = []
        for sentinel in list(self.sentinels):
            kept = sentinel.connection_pool.connection_kwargs
            where = f"{kept['host']}:{kept['port']}"
            try:
                known = await sentinel.sentinel_masters()
            except (NotConnected, TooLate) as error:
                said.append(f"{where}: {error}")
                continue
            # In the older protocol, which is the one that is spoken, they come by name.
            assert isinstance(known, dict)
            state = known.get(service_name)
            if state is None:
                said.append(f"{where} does not know it")
            elif not self.check_master_state(state, service_name):
                said.append(f"{where}: it is down")
            else:
                # Others may have changed the order meanwhile: none may get lost.
                self.sentinels.remove(sentinel)
                self.sentinels.insert(0, sentinel)
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"No master found for {service_name!r}: {'; '.join(said)}")
