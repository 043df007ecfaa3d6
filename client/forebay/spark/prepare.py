"""Any DataFrame as items: JSON payloads made by the JVM, and what forebay needs beside them.

    rows = forebay.spark.items(df, queue="crm", key="customer_id", priority=F.col("tier"))
    rows.write.format("forebay").mode("append").save()

The result has the columns `payload` and, where they are asked for, `key`, `priority`, `due`,
`delay`, `flow` and `action`. What holds for all rows, the queue with it, is not a column: it lies
in the metadata of `payload`, where the sink looks for options that it was not given. A step that
makes a new `payload` loses it, and the sink asks for the queue then.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as t

from forebay.spark.options import METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def items(
    df: "DataFrame",
    *,
    queue: str | None = None,
    payload: "Column | str | None" = None,
    key: "Column | str | None" = None,
    priority: "Column | int | str | None" = None,
    delay: "Column | float | str | None" = None,
    due: "Column | str | None" = None,
    flow: "Column | str | None" = None,
    action: "Column | str | None" = None,
) -> "DataFrame":
    """The items of `df`, one for each row.

    `payload`: a column or its name; a struct, map or array becomes JSON, a text or binary stays as
    it is, anything else becomes text. By default the whole row as a JSON object (Spark leaves out
    members that are null). `key` and `due` are columns; the others may be a column, or a plain
    value for all rows. A plain `priority` may be a label, and a plain `delay` a duration: `"5m"`.
    """
    columns = [_payload(df, F.struct("*") if payload is None else payload)]
    options: dict[str, str] = {} if queue is None else {"queue": queue}
    if key is not None:
        columns.append(_column(key).cast("string").alias("key"))
        options["key"] = "key"
    if due is not None:
        columns.append(_column(due).alias("due"))
        options["due"] = "due"
    for name, value in (("priority", priority), ("delay", delay)):
        _column_or_value(name, name, value, columns, options)
    for name, value in (("flow", flow), ("action", action)):
        _column_or_value(name, f"{name}Column", value, columns, options)
    options["payload"] = "payload"
    columns[0] = columns[0].alias("payload", metadata={METADATA: options})
    return df.select(*columns)


def _column_or_value(
    name: str, option: str, value: Any, columns: "list[Column]", options: dict[str, str]
) -> None:
    """A column goes with the rows, under `option`; a plain value is the option `name` itself."""
    if value is None:
        return
    if isinstance(value, int | float | str):
        options[name] = str(value)
    else:
        columns.append(value.alias(name))
        options[option] = name


def _payload(df: "DataFrame", payload: "Column | str") -> "Column":
    column = _column(payload)
    kind = df.select(column).schema.fields[0].dataType
    if isinstance(kind, t.StructType | t.MapType | t.ArrayType | t.VariantType):
        return F.to_json(column)
    if isinstance(kind, t.StringType | t.BinaryType):
        return column
    return column.cast("string")


def _column(column: "Column | str") -> "Column":
    return F.col(column) if isinstance(column, str) else column
