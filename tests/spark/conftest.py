"""One Spark session, one cluster and one daemon for all tests here that can share them.

Tasks may fail three times (`local[2,4]`). Tests that kill things have a daemon of their own.
"""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.daemon.cli.commands import Host, running
from tests.spark.quick import AHEAD, FEW_ROWS, NO_THREADS, QUICK, UNPACKED, make_site
from tests.spark.standalone import Cluster, running_cluster

SETTINGS = FEW_ROWS | {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.worker.reuse": "true",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the cluster is the last, one after the other: nobody else pays for it."""
    on_cluster = ("test_fleet.py", "test_cluster.py")
    places = {name: place for place, name in enumerate(on_cluster, 1)}
    items.sort(key=lambda item: places.get(item.path.name, 0))


@pytest.fixture(scope="package", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the environment, so that it holds for every process that is started from here."""
    site = make_site(tmp_path_factory.mktemp("quick") / "site", UNPACKED + AHEAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", site, prepend=os.pathsep)
        patch.setenv("JDK_JAVA_OPTIONS", QUICK)
        for name, value in NO_THREADS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    place = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,4]").appName("forebay-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(place / "local"))
    builder = builder.config("spark.sql.warehouse.dir", str(place / "warehouse"))
    # PySpark leaves sockets to the garbage collector.
    warnings.filterwarnings("ignore", category=ResourceWarning)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()
    # Here, so that no test after these is blamed for them.
    gc.collect()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("c")) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with running(Host(tmp_path_factory.mktemp("daemon"))) as host:
        yield host


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[Host]:
    """A daemon that a test may kill."""
    with running(Host(tmp_path)) as host:
        yield host


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue that no other test writes to."""
    name = "".join(at if at.isalnum() else "-" for at in request.node.name)
    return f"{name[:100]}"
