"""A master, two workers, and neither has forebay installed: tasks run twice, and it is shipped.

The only test with a cluster, and the longest here: it is the last.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import forebay
from tests.ops.commands import Host
from tests.spark.pulling import pull_all, staged, texts

HANG_S = 240
CLIENT = Path(forebay.__file__).parents[1]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
BLOCK = f"""\
import sys
sys.path[:] = [place for place in sys.path if place != {str(CLIENT)!r}]
"""


@contextmanager
def cluster(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a master that has two workers on two addresses of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    environment = {**environment, "SPARK_DAEMON_MEMORY": "256m"}
    name = "org.apache.spark.deploy.{0}.{1}"
    commands = [
        [name.format("master", "Master"), "--host", "127.0.0.1", "--port", str(port)],
    ]
    for at in ("127.0.0.1", "127.0.0.2"):
        room = ["--cores", "1", "--memory", "600m", "--work-dir", str(directory / at)]
        commands.append([name.format("worker", "Worker"), master, "--host", at, *room])
    with ExitStack() as processes, open(directory / "cluster.log", "wb") as log:
        for command in commands:
            process = processes.enter_context(
                subprocess.Popen(
                    [str(SPARK_CLASS), *command, "--webui-port", "0"],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
            processes.callback(process.kill)
        yield master


@pytest.mark.skipif(not SPARK_CLASS.exists(), reason="this PySpark has no cluster of its own")
def test_speculation_on_workers_that_do_not_have_the_package(
    own_host: Host, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "sitecustomize.py").write_text(BLOCK)
    (tmp_path / "driver").mkdir()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYTHONPATH": str(tmp_path / "block"), "TMPDIR": str(tmp_path)}
    with cluster(tmp_path, environment) as master:
        done = subprocess.run(
            [
                *(sys.executable, Path(__file__).with_name("cluster_driver.py")),
                *(master, CLIENT, own_host.socket, queue, tmp_path / "driver"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            timeout=HANG_S,
            check=True,
        )
    assert json.loads(done.stdout.splitlines()[-1]) == {"accepted": 4000}
    seen = {at.name for at in (tmp_path / "driver").glob("attempt-*")}
    assert seen == {"attempt-0-without", "attempt-1-without"}
    found = pull_all(own_host.socket, queue)
    assert texts(found) == sorted(str(at) for at in range(4100))
    assert len({item.id for item in found}) == 4100
    assert staged(own_host.socket, queue) == 0
    assert len(list(tmp_path.glob("forebay-*/client.zip"))) == 1
