"""A task in a Python that does not have forebay: what Spark would send it brings the package along.

No Spark runs here: a process without the package gets what a task gets. Real clusters and Spark
Connect are among the long tests (test_cluster.py, test_connect.py).
"""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from forebay.spark import shipped
from forebay.spark.shipping import pack_client
from tests.daemon.cli.commands import HANG_S, Host
from tests.spark.pulling import pull_all, texts, until_nothing_is_staged
from tests.spark.quick import UNPACKED, make_site
from tests.spark.test_cluster import BLOCK

TASK = """\
import importlib.util, pickle, sys
import pyarrow
assert importlib.util.find_spec("forebay") is None
writer = pickle.load(sys.stdin.buffer)
values = [str(at) for at in range(int(sys.argv[1]), int(sys.argv[2]))]
message = writer.write(iter([pyarrow.RecordBatch.from_pydict({"value": values})]))
sys.stdout.buffer.write(pickle.dumps(message.pickled))
"""


def test_tasks_without_the_package_write_and_the_driver_publishes(
    host: Host, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloudpickle.register_pickle_by_value(shipped)  # type: ignore[no-untyped-call]
    source = type("Shipped", (shipped.ShippedSource,), {"archive": pack_client()})
    schema = StructType([StructField("value", StringType())])
    writer = source({"queue": queue, "socket": str(host.socket)}).writer(schema, False)
    monkeypatch.setenv("PYTHONPATH", make_site(tmp_path / "site", UNPACKED + BLOCK))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    messages = []
    for first in (0, 100):
        done = subprocess.run(
            [sys.executable, "-c", TASK, str(first), str(first + 100)],
            input=cloudpickle.dumps(writer),  # type: ignore[no-untyped-call]
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            timeout=HANG_S,
            check=True,
        )
        messages.append(shipped.ShippedMessage(pickle.loads(done.stdout)))
    assert not pull_all(host.socket, queue)
    writer.commit(messages)
    assert texts(pull_all(host.socket, queue)) == sorted(str(at) for at in range(200))
    until_nothing_is_staged(host.socket, queue)
    assert len(list(tmp_path.glob("forebay-*/client.zip"))) == 1
