"""Pipelines: common tasks with forebay and Spark, as functions and as commands.

    push     files or a table → valid rows into a queue, invalid ones set aside with the reason
    drain    a queue → partitioned Parquet, each item once
    replay   dead letters → changed or as they are → back into a queue
    report   the daemons' event logs → Parquet tables and a page with plots and advice

Each takes a SparkSession and runs on a cluster as it does on a laptop: data stays on the executors.
`python -m forebay.pipeline --help`, or with spark-submit, is the same from a shell.
"""

from typing import TYPE_CHECKING

from forebay.lazy import lazily

if TYPE_CHECKING:
    from forebay.pipeline.drain_queue import Drained, drain
    from forebay.pipeline.push_rows import Pushed, Rule, push
    from forebay.pipeline.replay_letters import Replayed, replay
    from forebay.pipeline.report_events import NoEvents, Report, report

__all__ = [
    "Drained",
    "NoEvents",
    "Pushed",
    "Replayed",
    "Report",
    "Rule",
    "drain",
    "push",
    "replay",
    "report",
]

_HOMES = {
    "Drained": "drain_queue",
    "NoEvents": "report_events",
    "Pushed": "push_rows",
    "Replayed": "replay_letters",
    "Report": "report_events",
    "Rule": "push_rows",
    "drain": "drain_queue",
    "push": "push_rows",
    "replay": "replay_letters",
    "report": "report_events",
}


__getattr__, __dir__ = lazily(__name__, _HOMES)
