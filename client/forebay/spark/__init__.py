"""forebay for Spark: `format("forebay")` for batch and streaming, both ways.

    df.write.format("forebay").option("queue", "crm").mode("append").save()

Where the distribution `forebay` is installed, on the driver and on the executors, Spark finds the
format without help. Where it is not, `register` ships it.

Names are imported when they are first used: tasks need few of them.
"""

from typing import TYPE_CHECKING

from forebay.lazy import lazily

if TYPE_CHECKING:
    from forebay.spark.listener import listen
    from forebay.spark.options import OptionError
    from forebay.spark.prepare import items
    from forebay.spark.receipts import last_receipt, receipt
    from forebay.spark.shipping import register
    from forebay.spark.source import ForebaySource

__all__ = [
    "ForebaySource",
    "OptionError",
    "items",
    "last_receipt",
    "listen",
    "receipt",
    "register",
]

_HOMES = {
    "ForebaySource": "source",
    "OptionError": "options",
    "items": "prepare",
    "last_receipt": "receipts",
    "listen": "listener",
    "receipt": "receipts",
    "register": "shipping",
}


__getattr__, __dir__ = lazily(__name__, _HOMES)
