"""Fuzzes the control plane for as long as one likes: `python -m tests.fuzz.control --help`.

After each batch the daemon is killed, stopped and started again, and the next batch begins with an
empty state. The first thing that breaks ends the run, with the shrunk case and how to replay it.
"""

import argparse
import secrets
import sys
import time
from pathlib import Path
from typing import Final

from tests.fuzz.control.fuzzing import CASES_OF_EXAMPLE, Fuzzer
from tests.fuzz.control.steps import read_step

BATCH_EXAMPLES: Final = 1500
PROGRESS_S: Final = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.control")
    parser.add_argument("--cases", type=int, default=20_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, help="by default a random one")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--replay", type=Path, help="the steps of this file, and no others")
    options = parser.parse_args()
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    stores = ("sqlite", "postgres") if options.store == "both" else (options.store,)
    try:
        if options.replay is not None:
            replay(stores, options.replay)
        else:
            print(f"SEED={seed}", flush=True)
            for store in stores:
                fuzz(store, options.cases // len(stores), seed)
    except AssertionError as problem:
        print(problem, *getattr(problem, "__notes__", ()), sep="\n", file=sys.stderr)
        sys.exit(1)


def fuzz(store: str, cases: int, seed: int) -> None:
    fuzzer = Fuzzer(store, Progress(cases))
    try:
        while (left := cases - fuzzer.cases) > 0:
            examples = min(BATCH_EXAMPLES, left // CASES_OF_EXAMPLE + 1)
            fuzzer.run(examples, seed_=seed, may_restart=True)
            fuzzer.end()
            seed += 1
    finally:
        fuzzer.close()
    print(f"{store}: {fuzzer.cases:,} cases, nothing broke", flush=True)


def replay(stores: tuple[str, ...], file: Path) -> None:
    steps = [read_step(line) for line in file.read_text().splitlines()]
    for store in stores:
        fuzzer = Fuzzer(store)
        try:
            fuzzer.replay(steps)
        finally:
            fuzzer.close()
        print(f"{store}: {len(steps)} steps, nothing broke", flush=True)


class Progress:
    """A line every few seconds."""

    def __init__(self, cases: int) -> None:
        self._wanted = cases
        self._began = self._said = time.monotonic()

    def __call__(self, fuzzer: Fuzzer) -> None:
        now = time.monotonic()
        if now - self._said < PROGRESS_S:
            return
        self._said = now
        world = fuzzer.world
        slow = ", ".join(f"{name} {seconds:.1f} s" for seconds, name in reversed(world.slowest))
        print(
            f"{fuzzer.name}: {fuzzer.cases:,} of {self._wanted:,} cases, "
            f"{fuzzer.cases / (now - self._began):.0f} per second, "
            f"peak {world.peak_rss >> 20} MiB; slowest: {slow}",
            flush=True,
        )


if __name__ == "__main__":
    main()
