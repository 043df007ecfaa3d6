"""A cluster of Spark's own: a master, and a worker of one core on each of two addresses.

Each worker stands for a host, and knows the socket of that host's daemon alone. To start the three
is dear, so that the tests that need a cluster share one: an application takes both cores,
and the next one waits until it has ended or its driver was killed.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tests.eventually import eventually_sync
from tests.servers.ports import free_port

SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY: Final = "org.apache.spark.deploy"
HANG_S: Final = 600.0
"""Nothing is measured by it: what never comes should fail the test."""


@dataclass(frozen=True, slots=True)
class Cluster:
    master: str
    hosts: tuple[Path, Path]
    """The directories of the two hosts' daemons, which whoever uses the cluster starts."""


@contextmanager
def running_cluster(place: Path) -> Iterator[Cluster]:
    port = free_port()
    cluster = Cluster(f"spark://127.0.0.1:{port}", (place / "a", place / "b"))
    commands = [(["master.Master", "--host", "127.0.0.1", "--port", str(port)], place)]
    for number, host in enumerate(cluster.hosts, 2):
        host.mkdir()
        at = f"127.0.0.{number}"
        room = ["--cores", "1", "--memory", "600m", "--work-dir", str(place / at)]
        commands.append((["worker.Worker", cluster.master, "--host", at, *room], host))
    with ExitStack() as stack:
        log = stack.enter_context((place / "cluster.log").open("wb"))
        for (name, *options), host in commands:
            process = stack.enter_context(
                subprocess.Popen(
                    [SPARK_CLASS, f"{DEPLOY}.{name}", *options, "--webui-port", "0"],
                    env=environment(host / "f.sock"),
                    stdout=log,
                    stderr=log,
                )
            )
            stack.callback(process.kill)
        # Who asks a master in vain a few times gives up.
        eventually_sync(lambda: answers(port), "the master answers", deadline_s=HANG_S)
        yield cluster


def environment(own_socket: Path) -> dict[str, str]:
    """Of whatever runs on a host: it finds that host's daemon."""
    found = {name: value for name, value in os.environ.items() if "FOREBAY" not in name}
    found |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return found | {"SPARK_DAEMON_MEMORY": "256m", "FOREBAY_SOCKET": str(own_socket)}


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
