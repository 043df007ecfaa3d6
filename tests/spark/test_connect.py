"""Spark Connect: a server with a process and a Python of its own, and clients that are others.

One server's Python has forebay, as after an installation; the other's has not, and it is shipped.
The daemon's socket is in the servers' environment, and clients know nothing of it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pyspark
import pytest

from tests.daemon.cli.commands import Host
from tests.spark.connect_driver import BATCH_ROWS, STREAM_ROWS
from tests.spark.pulling import pull_all, texts, until_nothing_is_staged
from tests.spark.quick import FEW_ROWS, UNPACKED, make_site
from tests.spark.test_cluster import BLOCK

HANG_S = 900
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = FEW_ROWS | {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
pytestmark = [
    pytest.mark.long,  # A JVM for each server.
    pytest.mark.skipif(not SUBMIT.exists(), reason="this PySpark has no server of its own"),
]


@contextmanager
def server(directory: Path, host: Host, site: str) -> Iterator[str]:
    """The address of a server; its log is in the directory. `site` is what its Pythons do first."""
    options = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    options.append(f"--conf=spark.local.dir={directory}")
    environment = {**host.environment, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(directory)}
    environment |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": make_site(directory / "site", site),
    }
    with subprocess.Popen(
        [SUBMIT, "--master=local[2]", *options, f"--class={SERVER}", "spark-internal"],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        started: SimpleQueue[str | None] = SimpleQueue()
        reader = Thread(target=_read_log, args=(process, directory / "server.log", started))
        reader.start()
        try:
            address = started.get(timeout=HANG_S)
            assert address is not None, (directory / "server.log").read_text()
            yield f"sc://{address}"
        finally:
            process.kill()
            reader.join()


def _read_log(
    process: subprocess.Popen[bytes], log: Path, started: SimpleQueue[str | None]
) -> None:
    """Keeps what the server says, and tells its address; None at its end."""
    assert process.stdout is not None
    with open(log, "wb") as file:
        for line in process.stdout:
            file.write(line)
            if found := re.search(rb"Connect server started at: (\S+)", line):
                started.put(found[1].decode())
    started.put(None)


def run(*command: str | Path, **environment: str) -> dict[str, object]:
    """What a client prints, in its last line."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        timeout=HANG_S,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_a_server_whose_python_does_not_have_the_package(
    own_host: Host, queue: str, tmp_path: Path
) -> None:
    with server(tmp_path, own_host, UNPACKED + BLOCK) as remote:
        found = run(Path(__file__).with_name("connect_driver.py"), remote, queue, tmp_path)
    expected = {
        "before": r"DATA_SOURCE_NOT_FOUND.*forebay",
        "no column": r"option 'payload' is 'nothing': there is no such column",
        "no daemon": r"/nowhere/f\.sock",
        "receipt said": rf"receipt [0-9a-f]{{32}}: accepted {STREAM_ROWS},",
        "backlog said": rf"claim 1 of queue {queue} is read by lake, 1000 items wait behind it",
    }
    for name, pattern in expected.items():
        assert re.search(pattern, str(found.pop(name))), name
    half = BATCH_ROWS // 2
    assert found == {
        "last receipt": [BATCH_ROWS, BATCH_ROWS],
        "receipt": [BATCH_ROWS, BATCH_ROWS],
        "looked": [[0, half], [1, half]],
        "drained": [BATCH_ROWS, BATCH_ROWS],
    }
    for name in ("lines", "each"):
        items = pull_all(own_host.socket, f"{queue}-{name}")
        assert texts(items) == sorted(str(at) for at in range(STREAM_ROWS))
    until_nothing_is_staged(own_host.socket, queue)
    assert len(list(tmp_path.glob("forebay-*/client.zip"))) == 1


def test_a_pipeline_on_a_server_that_has_the_package(
    own_host: Host, queue: str, tmp_path: Path
) -> None:
    rows = "".join(f'{{"id": {at}, "email": "a{at % 3}@x"}}\n' for at in range(300))
    (tmp_path / "rows.json").write_text(rows)
    command = ["push", str(tmp_path / "rows.json"), "--format=json", f"--queue={queue}"]
    command += [
        "--key=id",
        "--rule=not zero: email NOT LIKE 'a0%'",
        f"--quarantine={tmp_path / 'bad'}",
    ]
    with server(tmp_path, own_host, UNPACKED) as remote:
        pushed = run("-m", "forebay.pipeline", *command, SPARK_REMOTE=remote)
    assert (pushed["rows"], pushed["quarantined"], pushed["pushed"]) == (300, 100, 200)
    assert isinstance(pushed["receipt"], dict)
    assert pushed["receipt"]["accepted"] == 200
    keys = {item.key for item in pull_all(own_host.socket, queue)}
    assert keys == {str(at) for at in range(300) if at % 3}
