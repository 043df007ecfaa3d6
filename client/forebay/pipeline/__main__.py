"""`python -m forebay.pipeline push|drain|replay|report …`, with or without spark-submit.

Progress goes to stderr, the outcome to stdout as one JSON object. Exit codes: 0 done, 1 failed, 2
usage.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ForebayError
from forebay.pipeline.commands import read_arguments
from forebay.pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = read_arguments(arguments)
    if find_spec("pyspark") is None:
        return _failed("pyspark is needed: pip install 'forebay[spark]', or use spark-submit")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None
    spark = SparkSession.builder.appName(f"forebay {parsed.command}").getOrCreate()
    try:
        outcome = _COMMANDS[parsed.command](spark, parsed, Progress())
    except (ForebayError, PySparkException, ValueError) as problem:
        # Through Spark Connect the server's stack comes along.
        return _failed(str(problem).partition("\n\nJVM stacktrace:")[0])
    finally:
        if is_ours:
            spark.stop()
    sys.stdout.write(json.dumps(outcome, default=_plain) + "\n")
    return 0


def _push(spark: "SparkSession", given: argparse.Namespace, say: Progress) -> dict[str, Any]:
    from forebay.pipeline.push_rows import Rule, push, tables_or_files

    pushed = push(
        spark,
        tables_or_files(spark, given.source, given.format, given.read_options),
        given.queue,
        rules=[Rule(*rule) for rule in given.rules],
        quarantine=given.quarantine,
        bad_share_max=given.bad_share_max,
        payload=given.payload,
        key=given.key,
        priority=given.priority,
        flow=given.flow,
        options=_options(given),
        app=given.app,
        version=given.version,
        say=say,
    )
    return {**asdict(pushed), "pushed": pushed.pushed}


def _drain(spark: "SparkSession", given: argparse.Namespace, say: Progress) -> dict[str, Any]:
    from forebay.pipeline.drain_queue import DATE, drain

    return asdict(
        drain(
            spark,
            given.queue,
            given.out,
            checkpoint=given.checkpoint,
            consumer=given.consumer,
            partition_by=given.partition_by or [DATE],
            body=given.body,
            every=given.every,
            options=_options(given),
            say=say,
        )
    )


def _replay(spark: "SparkSession", given: argparse.Namespace, say: Progress) -> dict[str, Any]:
    from forebay.pipeline.replay_letters import replay

    return asdict(
        replay(
            spark,
            given.queue,
            work=given.work,
            to=given.to,
            where=given.where,
            payload=given.payload,
            options=_options(given),
            read_options=given.read_options,
            say=say,
        )
    )


def _report(spark: "SparkSession", given: argparse.Namespace, say: Progress) -> dict[str, Any]:
    from forebay.pipeline.report_events import report

    made = report(
        spark,
        given.events,
        given.out,
        page=given.page,
        title=given.title,
        since_ms=given.since,
        until_ms=given.until,
        say=say,
    )
    return {"page": made.page, "tables": made.tables, "events": made.data.events}


_COMMANDS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "push": _push,
    "drain": _drain,
    "replay": _replay,
    "report": _report,
}


def _options(given: argparse.Namespace) -> dict[str, str]:
    socket = {} if given.socket is None else {"socket": given.socket}
    return {**given.options, **socket}


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _failed(text: str) -> int:
    sys.stderr.write(f"forebay.pipeline: {text}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
