"""The fleet's benchmarks, one after the other, each in a process of its own.

    python -m bench.fleet [PART …]

Ends as the worst of them did.
"""

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

PARTS: Final[Mapping[str, str]] = {
    "through_valkey": "push to settled, through Valkey and another daemon's workers",
    "valkey_warm": "the warm queue in Valkey alone",
    "overflow": "overflow into PostgreSQL, beside a row for each item",
    "keyed": "keyed queues, beside a bare INSERT … ON CONFLICT",
}


def main(chosen: list[str]) -> int:
    unknown = set(chosen) - set(PARTS)
    if unknown:
        print(f"no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    codes = [0]
    for part in chosen or PARTS:
        print(f"\n{part}: {PARTS[part]}", flush=True)
        command = [sys.executable, "-m", f"bench.fleet.{part}"]
        codes.append(subprocess.run(command, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
