"""`python -m bench.fleet.valkey_warm`: warm in Valkey, with runs of 1,000 and of 1 item.

Entered, leased and ended by one task, and by several at once, through a private server's Unix
socket. Medians of rounds; a bare PING beside them says what a round trip costs here.
"""

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import trio
import typer

from actors.model.slices import InCold, LentRun, Slice, item_bits
from actors.ports.tiers import Ending, Limits
from bench.items import crm_runs, restamp
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.warm import ValkeyWarm
from forebay.run import encode_run, read_head
from tests.servers.valkey import new_prefix, valkey_server

PLENTY: Final = Limits(10**9, 10**12)


def runs(count: int, items: int, epoch: bytes) -> list[Slice]:
    data = [encode_run(payloads, queue="q") for payloads in crm_runs(8, items)]
    made: list[Slice] = []
    for number in range(count):
        encoded = restamp(data[number % 8])
        run = LentRun(read_head(encoded), encoded, InCold(number.to_bytes(16, "big"), epoch))
        made.append(Slice(run, item_bits(0, items)))
    return made


async def enter(warm: ValkeyWarm, slices: list[Slice], batch: int) -> None:
    for start in range(0, len(slices), batch):
        assert not (await warm.enter("q", slices[start : start + batch], PLENTY)).rest


async def drain(warm: ValkeyWarm, items_max: int) -> None:
    while leased := await warm.lease("q", items_max, 10**9, 60.0):
        await warm.end("q", [Ending(one.token) for one in leased])


async def at_once(tasks: int, work: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(work)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def one_round(warm: ValkeyWarm, slices: list[Slice], batch: int, tasks: int) -> list[float]:
    items = sum(slice_.items for slice_ in slices)
    share = len(slices) // tasks
    parts = iter([slices[start : start + share] for start in range(0, share * tasks, share)])
    entered = await timed(lambda: at_once(tasks, lambda: enter(warm, next(parts), batch)))
    drained = await timed(lambda: at_once(tasks, lambda: drain(warm, batch * items // len(slices))))
    return [items / entered, items / drained]


async def measure(rounds: int) -> None:
    with valkey_server() as server:
        async with Bridge() as bridge:
            settings = ValkeySettings(server.url, prefix=new_prefix())
            warm = ValkeyWarm(settings, bridge)
            epoch = await warm.epoch("q")

            async def ping() -> None:
                for _ in range(1000):
                    await warm.generation()

            print(f"generation() (two commands): {await timed(ping) * 1000:.0f} µs")
            for items, count, batch, tasks in (
                (1000, 400, 1, 1),
                (1000, 400, 1, 4),
                (1000, 400, 8, 4),
                (1, 4000, 100, 4),
            ):
                slices = runs(count, items, epoch)
                found = [await one_round(warm, slices, batch, tasks) for _ in range(rounds)]
                into, out = (statistics.median(column) for column in zip(*found, strict=True))
                print(
                    f"runs of {items:>5,}, {batch:>3} a step, {tasks} tasks: "
                    f"enter {into:>10,.0f} items/s, lease + end {out:>10,.0f} items/s"
                )
            await warm.close()


def main(rounds: Annotated[int, typer.Option(min=1)] = 3) -> None:
    trio.run(measure, rounds)


if __name__ == "__main__":
    typer.run(main)
