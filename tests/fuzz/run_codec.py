"""Coverage-guided fuzzing of the run codec: `python -m tests.fuzz.run_codec --help`.

atheris (libFuzzer) chooses the inputs; the mutator knows the format, and repairs lengths and
checksum of a share of what it makes, so that the code behind them is reached. The oracle is
`run_oracle.check_any_bytes`. A failing input is stored in build/fuzz/, is run again with
`--replay FILE`, and ends as a named test; the exit status is then 1.

libFuzzer never gives the process back, so the last input ends it. The lines reached are counted
afterwards, by running the inputs that libFuzzer kept in a process whose code atheris has not
rewritten.
"""

import argparse
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, NoReturn

from tests.fuzz.run_damage import HEAD, mutate, repair, reseal, squeeze

FAILURES = Path(__file__).parents[2] / "build" / "fuzz"
CODEC = ("column", "encode", "head", "ids", "run", "snappy")
INPUT_BYTES_MAX = 4096
REPAIRED_SHARE = 0.75
PROGRESS_INPUTS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run_codec")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (%(default)s)")
    parser.add_argument("--replay", type=Path, help="run this file, or the files of this folder")
    options = parser.parse_args()
    if options.replay is not None:
        replay(options.replay)
    else:
        fuzz(options.inputs, options.seed)


def fuzz(inputs: int, seed: int) -> None:
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        sys.exit("the fuzzer needs atheris: pip install atheris")
    with atheris.instrument_imports(include=["forebay"]):
        oracle = importlib.import_module("tests.fuzz.run_oracle")
    corpus = tempfile.TemporaryDirectory(prefix="forebay-fuzz-")
    good = seeds()
    for number, run in enumerate(good):
        Path(corpus.name, f"seed-{number}").write_bytes(run)

    reached: Counter[str] = Counter()
    started = time.monotonic()

    def one(data: bytes) -> None:
        try:
            reached[oracle.check_any_bytes(data)] += 1
        except BaseException:
            fail(data)
        done = reached.total()
        if done % PROGRESS_INPUTS == 0 or done == inputs:
            rate = done / (time.monotonic() - started)
            kept = len(os.listdir(corpus.name))
            say(f"{done:>9,} inputs, {rate:,.0f} a second, {kept} kept, seed {seed}")
        if done == inputs:
            summarize()

    def summarize() -> NoReturn:
        seconds = time.monotonic() - started
        say(f"inputs     {inputs:,} in {seconds:.0f} s: {inputs / seconds:,.0f} a second")
        for outcome, number in reached.most_common():
            say(f"           {number:>9,}  {outcome}")
        command = [sys.executable, "-m", "tests.fuzz.run_codec", "--replay", corpus.name]
        replayed = subprocess.run(command, check=False).returncode
        say(f"failures   {1 if replayed else 0}")
        corpus.cleanup()
        os._exit(1 if replayed else 0)

    def mutator(data: bytes, max_size: int, mutation_seed: int) -> bytes:
        random = Random(mutation_seed)
        # Most of what libFuzzer keeps is refused early; damage on damage rarely gets further.
        made = random.choice(good) if random.random() < 0.4 else data
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            made = mutate(made, random)
        if made == data or random.random() < 0.1:
            # libFuzzer's own changes, which know what the codec compared; often to the body alone.
            at = random.choice((0, HEAD.size + 3))
            made = made[:at] + atheris.Mutate(made[at:], max_size)
        if random.random() < REPAIRED_SHARE:
            made = repair(made)
        elif random.random() < 0.5:
            made = reseal(made)
        return bytes(made[:max_size])

    FAILURES.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0],
        corpus.name,
        f"-seed={seed}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-len_control=0",
        "-mutate_depth=2",
        "-timeout=10",
        "-rss_limit_mb=1024",
        f"-artifact_prefix={FAILURES}/",
        "-verbosity=0",
    ]
    atheris.Setup(arguments, one, custom_mutator=mutator)
    atheris.Fuzz()


def fail(data: bytes) -> NoReturn:
    """Stores the input and ends the process: libFuzzer would go on to print its own report."""
    FAILURES.mkdir(parents=True, exist_ok=True)
    path = FAILURES / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.write_bytes(data)
    traceback.print_exc()
    say(f"failures   1, on {len(data)} bytes: {data[:200].hex()}")
    say(f"stored; run it again with: python -m tests.fuzz.run_codec --replay {path}")
    sys.stderr.flush()
    os._exit(1)


def seeds() -> list[bytes]:
    """Small runs of every shape; the mutator makes the rest."""
    run: Any = importlib.import_module("forebay.run")
    run_head: Any = importlib.import_module("forebay.head")
    run_id = bytes(range(16))
    made = []
    for count, flags in product((1, 2, 9), range(16)):
        with_crc32c = run_head.crc32c
        run_head.crc32c = None if flags & 8 else with_crc32c
        many = count > 1
        plain = run.encode_run(
            [b"payload " * (index % 3) for index in range(count)],
            queue="crm",
            compressed=False,
            keys=[b"k" * (200 - index) for index in range(count)] if flags & 2 else None,
            item_ids=[run_id + bytes((index, 0)) for index in range(count)] if flags & 4 else None,
            flow="nightly" if many else "",
            action="é" if many else "",
            headers={"trace": "7f", "n": ""} if many else None,
            enqueued_ms=1,
            run_id=run_id,
        )
        made.append(squeeze(plain) if flags & 1 else plain)
        run_head.crc32c = with_crc32c
    return made


def replay(path: Path) -> None:
    """Runs stored inputs and says which lines of the codec's functions they reach."""
    oracle = importlib.import_module("tests.fuzz.run_oracle")
    modules = [importlib.import_module(f"forebay.{name}") for name in CODEC]
    sources = {str(module.__file__): module.__name__.split(".")[1] for module in modules}
    hit: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        filename = frame.f_code.co_filename
        if filename not in sources:
            return None
        if event == "line":
            hit.add((filename, frame.f_lineno))
        return trace

    files = sorted(path.iterdir()) if path.is_dir() else [path]
    sys.settrace(trace)
    for file in files:
        data = file.read_bytes()
        try:
            oracle.check_any_bytes(data)
        except Exception:
            sys.settrace(None)
            fail(data)
    sys.settrace(None)
    say(f"coverage   of {len(files)} kept inputs, lines inside functions:")
    for filename, name in sources.items():
        code = compile(Path(filename).read_text(encoding="utf-8"), filename, "exec")
        lines = function_lines(code)
        missed = sorted(lines - {line for file, line in hit if file == filename})
        say(f"           {name}.py {len(lines) - len(missed)} of {len(lines)}, not: {missed}")


def function_lines(code: CodeType, inside: bool = False) -> set[int]:
    """The lines that run when functions do, not when the module is imported."""
    lines = {line for _, _, line in code.co_lines() if line} if inside else set()
    # The line of the `def` itself belongs to what defines it.
    lines.discard(code.co_firstlineno)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_function = bool(constant.co_flags & 2)
            lines |= function_lines(constant, is_function)
    return lines


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
