"""What makes a Spark that lives for seconds or a few minutes start sooner, and cost less.

Measured on a session that runs two small jobs, CPU seconds of its JVM: 22.8 as it is, 11.1 to 13.4
with `QUICK`. Starting one of its Pythons: 0.76 s, and 0.22 s where PySpark is `UNPACKED`.
"""

from pathlib import Path
from typing import Final

QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""A JVM that lives for seconds is done before what it compiles pays, and nobody has changed Spark's
classes: they need no check."""

UNPACKED: Final = """\
import sys
sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
"""
"""The same PySpark lies beside it, compiled: each of Spark's many processes starts sooner."""

AHEAD: Final = """\
import sys
if "pyspark.daemon" in sys.orig_argv:
    import importlib
    worker = sys.orig_argv[-1]
    for name in (worker, "forebay.spark.writer", *["pandas"] * (worker == "pyspark.worker")):
        importlib.import_module(name)
"""
"""Spark forks the Python of each task from a daemon, and each imports all that it needs. Here the
daemon has it already, and starts no threads by that: see `NO_THREADS`."""

NO_THREADS: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

FEW_ROWS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""A few rows are done before what would be compiled or planned anew for them is: 38 tests on one
session took 62.9 CPU seconds with `factoryMode` as it is, and 54.7 without code generation."""


def make_site(directory: Path, does: str = UNPACKED) -> str:
    """What a Python whose PYTHONPATH begins with it does first."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(does)
    return str(directory)
