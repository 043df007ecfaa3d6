"""A cluster whose Pythons do not have forebay installed: tasks run twice, and it is shipped.

Spark is left as it is here: plans are compiled and changed on the way, as for most users.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from tests.daemon.cli.commands import Host
from tests.spark.pulling import pull_all, texts, until_nothing_is_staged
from tests.spark.quick import UNPACKED, make_site
from tests.spark.standalone import SPARK_CLASS, Cluster, environment

HANG_S = 900
CLIENT = Path(forebay.__file__).parents[1]
BLOCK = f"""\
import sys
sys.path[:] = [place for place in sys.path if place != {str(CLIENT)!r}]
"""


@pytest.mark.long
@pytest.mark.skipif(not SPARK_CLASS.exists(), reason="this PySpark has no cluster of its own")
def test_speculation_on_workers_that_do_not_have_the_package(
    cluster: Cluster, own_host: Host, queue: str, tmp_path: Path
) -> None:
    blocked = make_site(tmp_path / "block", UNPACKED + BLOCK)
    (tmp_path / "driver").mkdir()
    done = subprocess.run(
        [
            *(sys.executable, Path(__file__).with_name("cluster_driver.py")),
            *(cluster.master, CLIENT, own_host.socket, queue, tmp_path / "driver"),
        ],
        env=environment(own_host.socket) | {"PYTHONPATH": blocked, "TMPDIR": str(tmp_path)},
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
    until_nothing_is_staged(own_host.socket, queue)
    assert len(list(tmp_path.glob("forebay-*/client.zip"))) == 1
