"""Schemathesis against a running daemon: no 5xx, no answer that /openapi.json does not describe.

Its command runs in a process of its own, with a seed: what it finds is found again. Streams of
events have no end and are left out; a lease does not wait for items that nobody adds.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.http.serving import serving_on

SEED = 17
HANG_S = 600
"""A guard against hangs; on a quiet machine of two cores the long run takes 30 s."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
CONFIG = """
[[operations]]
include-operation-id = "nextItem"
parameters = { "query.wait_s" = 0 }
"""


@pytest.mark.parametrize(
    "examples, cases_min", [(3, 500), pytest.param(12, 2000, marks=pytest.mark.long)]
)
def test_every_answer_is_described_and_none_is_an_error_of_the_server(
    examples: int, cases_min: int, tmp_path: Path
) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    queues = {"crm": {"handler": {"type": "pull"}, "history": "all"}}
    with serving_on(tmp_path, {"queues": queues}, rate_limit=0) as serving:
        # Loaded here: Schemathesis gives a server 10 s to describe itself.
        described = tmp_path / "openapi.json"
        described.write_bytes(serving.http.get("/openapi.json").content)
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            f"--config-file={config}",
            "run",
            str(described),
            f"--url={serving.address}",
            f"--checks={','.join(CHECKS)}",
            "--exclude-path=/api/v2/events",
            # Two threads that generate run into a fault of CPython 3.11's parser.
            "--workers=1",
            f"--max-examples={examples}",
            f"--seed={SEED}",
            f"--request-timeout={HANG_S}",
            "--generation-database=none",
            "--continue-on-failure",
            "--warnings=off",
            "--no-color",
        ]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.daemon.http.schemathesis_hooks"}
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=HANG_S, env=environment, check=False
        )
        assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-2000:]
        (cases,) = re.findall(r"(\d+) generated", found.stdout)
        assert int(cases) >= cases_min, found.stdout[-2000:]
        ready = serving.http.get("/readyz").json()
        assert ready["is_ready"], ready
