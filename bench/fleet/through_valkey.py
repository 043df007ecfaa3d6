"""Through Valkey: pushed to one daemon, discarded by another, settled by the first.

    python -m bench.fleet.through_valkey

A push is durable in the first daemon's journal, entered into Valkey, leased and ended by the second
daemon's `null` workers, and settled by the first when it has read its mail. Counted is what the
first one's books call delivered once nothing is held any more. Producer, both daemons and Valkey
share the machine's cores.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bench.producers import Work, push_for, run_maker
from forebay import connect
from tests.daemon.cli.commands import Host, running
from tests.servers.postgres import postgres_server
from tests.servers.valkey import valkey_server

GOAL: Final = 150_000
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


def one_round(accepts: Host, seconds: float, run_items: int) -> float:
    """Items a second."""
    make_run = run_maker(Work.READY, QUEUE, run_items)
    with connect(accepts.socket) as client:
        before = _books(client.stats())
        began = time.perf_counter()
        push_for(client, make_run, seconds, WINDOW)
        client.drain()
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
) -> None:
    """Measure the way through Valkey."""
    with (
        tempfile.TemporaryDirectory(prefix="fb-") as name,
        fleet(Path(name)) as (accepts, delivers),
    ):
        one_round(accepts, 1.0, run_items)
        rates = [one_round(accepts, seconds, run_items) for _ in range(rounds)]
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
    is_met = "met" if median >= GOAL else "not met"
    print(
        f"through Valkey, runs of {run_items:,}: {median:,.0f} items/s ({spread}), "
        f"goal {GOAL:,}: {is_met}"
    )


if __name__ == "__main__":
    typer.run(main)
