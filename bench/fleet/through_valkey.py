"""Through a fleet: pushed to one daemon, discarded by another.

    python -m bench.fleet.through_valkey [--run-items 1] [--producers 50]

A push is durable in the first daemon's journal, handed over to PostgreSQL, entered into Valkey,
leased by the second daemon's `null` workers, and settled in PostgreSQL. Counted is what the books
call delivered once nothing is held any more. Producers, both daemons, PostgreSQL and Valkey share
the machine's cores.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bench.producers import Work, push_for, run_maker
from forebay import connect
from tests.daemon.cli.commands import Host, running
from tests.servers.postgres import postgres_server
from tests.servers.valkey import valkey_server

GOALS: Final = {1000: 300_000, 1: 5_000}
"""Items per second, by the items of a run."""
QUEUE: Final = "through"
WINDOW: Final = 32
ROOM: Final = {"warm_max_items": 1_000_000, "warm_max_bytes": "1Gi"}


@contextmanager
def fleet(directory: Path) -> Iterator[tuple[Host, Host]]:
    """One that accepts, one that delivers."""
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        valkey = stack.enter_context(valkey_server())
        shared = {
            "warm": {"type": "valkey", "url": valkey.url},
            "fleet": True,
            "cold": {"type": "postgres", "url": postgres.url()},
            "socket": {"max_run_bytes": "1Mi"},
            "spool": {"min_free_bytes": 0, "max_bytes": "16Gi", "spare_chunks": 16},
            "http": {"listen": None},
            "log": {"format": "json"},
        }
        null = {"handler": {"type": "null"}, **ROOM}
        hosts = [
            _host(
                directory / "accepts", {**shared, "queues": {QUEUE: {**null, "is_active": False}}}
            ),
            _host(directory / "delivers", {**shared, "queues": {QUEUE: null}}),
        ]
        accepts, delivers = [stack.enter_context(running(host)) for host in hosts]
        yield accepts, delivers


def _host(directory: Path, config: dict[str, Any]) -> Host:
    directory.mkdir()
    return Host(directory, config)


def one_round(accepts: Host, seconds: float, run_items: int, producers: int) -> float:
    """Items per second."""
    make_run = run_maker(Work.READY, QUEUE, run_items)

    def push() -> None:
        with connect(accepts.socket) as producer:
            push_for(producer, make_run, seconds, WINDOW if producers == 1 else 1)
            producer.drain()

    with connect(accepts.socket) as client, ThreadPoolExecutor(producers) as pool:
        before = _books(client.stats())
        began = time.perf_counter()
        for done in [pool.submit(push) for _ in range(producers)]:
            done.result()
        while (books := _books(client.stats()))["held"]:
            time.sleep(0.01)
        took_s = time.perf_counter() - began
    return (books["delivered"] - before["delivered"]) / took_s


def _books(stats: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = stats["queues"].get(QUEUE, {"held": 0, "delivered": 0})
    return found


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Of pushes, each round.")] = 5.0,
    run_items: Annotated[int, typer.Option(min=1, max=4096)] = 1000,
    producers: Annotated[int, typer.Option(min=1, help="More than one: one push at a time.")] = 1,
) -> None:
    """Measure the way through a fleet."""
    with (
        tempfile.TemporaryDirectory(prefix="fb-") as name,
        fleet(Path(name)) as (accepts, delivers),
    ):
        one_round(accepts, 1.0, run_items, producers)
        rates = [one_round(accepts, seconds, run_items, producers) for _ in range(rounds)]
        troubles = [
            json.dumps(line)
            for host in (accepts, delivers)
            for line in host.log()
            if line["level"] in ("warning", "error")
        ]
    for trouble in troubles:
        print(trouble)
    median = statistics.median(rates)
    spread = ", ".join(f"{rate:,.0f}" for rate in rates)
    line = f"through a fleet, runs of {run_items:,}, {producers} producers: "
    line += f"{median:,.0f} items/s ({spread})"
    if (goal := GOALS.get(run_items)) is not None:
        line += f", goal {goal:,}: {'met' if median >= goal else 'not met'}"
    print(line)


if __name__ == "__main__":
    typer.run(main)
