"""`register(spark)`: the format `forebay` on a cluster where the client is not installed.

The client's own source files travel with the data source, as a zip of about 100 KB, and are
unpacked where they are needed: see shipped.py. This works in classic sessions and through Spark
Connect, for batch and streams, because Spark only has to pickle classes by value.

Only the package is shipped. cramjam (Snappy) and crc32c are compiled, and are used where they are
installed: without them runs are not compressed, and carry zlib's CRC-32. The cluster needs pyarrow,
as for every Python data source, and Spark 4.2 or newer.
"""

import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import cloudpickle

import forebay
import forebay.spark.shipped as shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAME_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The same files make the same zip: its bytes name the place where it is unpacked."""


def register(spark: "SparkSession") -> None:
    """Makes `format("forebay")` known to this session, together with the client's code."""
    # Not the package itself: its locks and structs cannot be pickled, its modules can be zipped.
    cloudpickle.register_pickle_by_value(shipped)  # type: ignore[no-untyped-call]
    archive = pack_client()
    source = type("ShippedForebay", (shipped.ShippedSource,), {"archive": archive})
    spark.dataSource.register(source)


def pack_client() -> bytes:
    """The source files of the package `forebay`, zipped."""
    assert forebay.__file__ is not None
    root = Path(forebay.__file__).parent
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path in sorted(root.rglob("*.py")):
            name = (Path(root.name) / path.relative_to(root)).as_posix()
            entry = zipfile.ZipInfo(name, _SAME_TIME)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()
