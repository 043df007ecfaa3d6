"""`make bench-attacks`: what hostile clients cost the daemon, and a client that behaves well.

For each attack of bench/attackers.py a new daemon runs in a process of its own, the attackers in
another. Here are two well-behaved clients: one pushes an item every 10 ms, one asks /healthz every
50 ms. They are measured while it is quiet, and again under the attack; `quiet` in the table is the
mean of all quiet times. RSS is what the daemon has before, at most, and 5 s after the attack.
docs/benchmarks.md has the figures.
"""

import json
import multiprocessing
import multiprocessing.synchronize
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Annotated, Final

import httpx
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.attackers import ATTACKS, SETTINGS, Siege, Target
from bench.daemon_process import HOLDING, QUEUES, Daemon, places
from bench.figures import percentile

P99_MS_MAX: Final = 250.0
PUSH_EVERY_S: Final = 0.01
HEALTH_EVERY_S: Final = 0.05
RSS_EVERY_S: Final = 0.02
AFTER_S: Final = 5.0
START_S: Final = 1.0
"""For the attackers to come into their stride."""
MIB: Final = 1024 * 1024


@dataclass(slots=True)
class Delays:
    """In milliseconds."""

    push: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Figures:
    attack: str
    rss_mib: tuple[float, float, float]
    """Before, at most, and afterwards."""
    quiet: Delays
    attacked: Delays


def measure(name: str, seconds: float) -> Figures:
    with (
        places("attacks") as at,
        Daemon(at, queues={**QUEUES, **SETTINGS}, http_listen="127.0.0.1:0") as daemon,
    ):
        target = Target(daemon.socket, daemon.http_address)
        quiet, attacked = Delays(), Delays()
        with well_behaved(daemon, quiet):
            time.sleep(seconds / 2)
        before = peak = daemon.memory_bytes()
        with attackers(name, target):
            time.sleep(START_S)
            with well_behaved(daemon, attacked):
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    peak = max(peak, daemon.memory_bytes())
                    time.sleep(RSS_EVERY_S)
            peak = max(peak, daemon.memory_bytes("VmHWM"))
        time.sleep(AFTER_S)
        after = daemon.memory_bytes()
    return Figures(name, (before / MIB, peak / MIB, after / MIB), quiet, attacked)


@contextmanager
def attackers(name: str, target: Target) -> Iterator[None]:
    """In a process of their own, until the end of the context."""
    context = multiprocessing.get_context("spawn")
    begun, over = context.Event(), context.Event()
    process = context.Process(target=_attack, args=(name, target, begun, over), daemon=True)
    process.start()
    try:
        begun.wait()
        yield
    finally:
        over.set()
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


def _attack(
    name: str,
    target: Target,
    begun: multiprocessing.synchronize.Event,
    over: multiprocessing.synchronize.Event,
) -> None:
    begun.set()
    ATTACKS[name](target, Siege(over.is_set))


@contextmanager
def well_behaved(daemon: Daemon, delays: Delays) -> Iterator[None]:
    """Two clients in threads, until the end of the context."""
    over = threading.Event()
    with (
        daemon.connect() as client,
        httpx.Client(base_url=daemon.http_address, trust_env=False, timeout=60) as http,
    ):
        threads = [
            threading.Thread(target=_repeat, args=(over, every_s, act, found))
            for every_s, act, found in (
                (PUSH_EVERY_S, lambda: client.push(HOLDING, [b"x" * 300]), delays.push),
                (HEALTH_EVERY_S, lambda: http.get("/healthz").raise_for_status(), delays.health),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _repeat(
    over: threading.Event, every_s: float, act: Callable[[], object], found: list[float]
) -> None:
    act()
    while not over.wait(every_s):
        began = time.perf_counter()
        act()
        found.append((time.perf_counter() - began) * 1000)


def _delays(milliseconds: Sequence[float]) -> tuple[str, str, str]:
    ordered = sorted(milliseconds)
    shares = (percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1])
    return tuple(f"{share:,.1f}" for share in shares)  # type: ignore[return-value]


def print_table(found: Sequence[Figures], seconds: float) -> None:
    title = (
        f"Attacks of {seconds:g} s: {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the end; delays in ms: p50, p99, largest"
    )
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("attack")
    for name in ("RSS before", "peak", "after, MiB", "push p50", "p99", "max", "/healthz p50"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("p99", "max", "p99 ≤ 250"):
        table.add_column(name, justify="right", no_wrap=True)
    quiet = Delays(
        [delay for figures in found for delay in figures.quiet.push],
        [delay for figures in found for delay in figures.quiet.health],
    )
    rest = mean(figures.rss_mib[0] for figures in found)
    table.add_row("quiet", f"{rest:.0f}", "", "", *_delays(quiet.push), *_delays(quiet.health), "")
    for figures in found:
        push, health = figures.attacked.push, figures.attacked.health
        worst = max(percentile(sorted(delays), 0.99) for delays in (push, health))
        table.add_row(
            figures.attack,
            *(f"{size:.0f}" for size in figures.rss_mib),
            *_delays(push),
            *_delays(health),
            "[green]met[/]" if worst <= P99_MS_MAX else "[bold red]short[/]",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main(
    attacks: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(ATTACKS)}; all by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of each attack.")] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every delay as JSON instead of a table.")
    ] = False,
) -> None:
    """Measure what hostile clients cost."""
    chosen = attacks or list(ATTACKS)
    unknown = set(chosen) - set(ATTACKS)
    if unknown:
        raise typer.BadParameter(f"no attack {', '.join(sorted(unknown))}")
    found = []
    for name in chosen:
        print(f"{name} …", file=sys.stderr, flush=True)
        found.append(measure(name, seconds))
    if as_json:
        print(json.dumps([asdict(figures) for figures in found], indent=1))
    else:
        print_table(found, seconds)


if __name__ == "__main__":
    typer.run(main)
