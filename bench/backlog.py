"""A backlog on disk: items in a queue without workers and consumers."""

from itertools import cycle
from typing import Final

from bench.daemon_process import HOLDING, Daemon
from bench.items import crm_runs
from bench.plan import Plan
from forebay.run import encode_run
from forebay.snappy import compress

MILLION: Final = 1_000_000
RUNS_MADE: Final = 32
WINDOW: Final = 64


def backlog_items(plan: Plan) -> int:
    return MILLION // 10 if plan.is_quick else MILLION


def fill(daemon: Daemon, items: int, run_items: int) -> int:
    """Pushes items; returns the bytes that their payloads take under Snappy, run by run."""
    assert compress is not None, "the benchmarks need the package cramjam"
    made = crm_runs(RUNS_MADE, run_items)
    sizes = [len(compress(b"".join(payloads))) for payloads in made]
    squeezed = 0
    with daemon.connect() as client:
        for (payloads, size), _ in zip(
            cycle(zip(made, sizes, strict=True)), range(items // run_items), strict=False
        ):
            client.submit(encode_run(payloads, queue=HOLDING), window=WINDOW)
            squeezed += size
        client.drain()
    return squeezed
