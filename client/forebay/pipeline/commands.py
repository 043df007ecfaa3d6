"""The command line of the pipelines: arguments and help texts."""

import argparse
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


class OneOption(argparse.Action):
    """`--option NAME=VALUE`, any number of times, into a dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        name, is_there, value = str(values).partition("=")
        if not is_there:
            parser.error(f"{self.option_strings[0]} {values}: write NAME=VALUE")
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: value})


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Ends the process with code 2 if the arguments are not valid."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.command == "push" and (given.app is None) != (given.version is None):
        parser.error("push: --app and --version go together")
    return given


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.pipeline",
        description=(
            "What is often done with forebay from Spark. Runs on a laptop as it is, and on a "
            "cluster with spark-submit; data stays on the executors."
        ),
        epilog=(
            "Each has its own help, with examples: python -m forebay.pipeline push --help. For "
            "spark-submit the program is the file that python -c 'import forebay.pipeline.__main__ "
            "as m; print(m.__file__)' prints."
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _push(commands)
    _drain(commands)
    _replay(commands)
    _report(commands)
    return parser


def _command(commands: Any, name: str, summary: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(about),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return made


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket", metavar="PATH", help="the daemon's socket, on every host (default: as found)"
    )
    parser.add_argument(
        "--option",
        dest="options",
        action=OneOption,
        default={},
        metavar="NAME=VALUE",
        help='another option of format("forebay"); may be repeated',
    )


def _push(commands: Any) -> None:
    parser = _command(
        commands,
        "push",
        "files or a table into a queue, bad rows aside",
        """\
        Pushes rows to a queue, in one write that is seen whole or not at all. Rows that break a
        rule go to a quarantine, with the reason, and can be mended and pushed from there.

          python -m forebay.pipeline push /data/customers --queue crm --key customer_id \\
              --rule "no e-mail: email LIKE '%@%'" --rule "no consent: consent" \\
              --quarantine /data/quarantine

          python -m forebay.pipeline push sales.orders --format table --queue orders \\
              --payload "to_json(struct(id, total))" --app orders-feed --version 20250812
        """,
    )
    parser.add_argument("source", nargs="+", help="files, directories, or names of tables")
    parser.add_argument("--queue", required=True)
    parser.add_argument(
        "--format", default="parquet", help="parquet, csv, json, …; or table (default: parquet)"
    )
    parser.add_argument(
        "--read-option",
        dest="read_options",
        action=OneOption,
        default={},
        metavar="NAME=VALUE",
        help="an option of the format, as header=true; may be repeated",
    )
    parser.add_argument(
        "--rule",
        dest="rules",
        action="append",
        default=[],
        type=_rule,
        metavar="'NAME: CONDITION'",
        help="an SQL condition that good rows fulfil, after what is wrong otherwise; repeatable",
    )
    parser.add_argument("--quarantine", metavar="PATH", help="where bad rows go, as Parquet")
    parser.add_argument(
        "--bad-share-max",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="push nothing if more rows are bad, as 0.05 (default: 1)",
    )
    parser.add_argument(
        "--payload", metavar="SQL", help="of an item (default: all columns as a JSON object)"
    )
    for name in ("key", "priority", "flow"):
        parser.add_argument(f"--{name}", metavar="SQL", help=f"an item's {name}")
    parser.add_argument(
        "--app", help="with --version: push this version once, however often it is tried"
    )
    parser.add_argument("--version", type=int, help="with --app; higher than all before")
    _common(parser)


def _drain(commands: Any) -> None:
    parser = _command(
        commands,
        "drain",
        "a queue to partitioned Parquet, each item once",
        """\
        Reads a queue until it is empty and writes Parquet. Run it again, with the same checkpoint
        and consumer, for what has come since; after a crash it goes on where it was.

          python -m forebay.pipeline drain --queue crm --out /data/crm \\
              --checkpoint /data/checkpoints/crm --consumer lake \\
              --body "id BIGINT, email STRING"
        """,
    )
    parser.add_argument("--queue", required=True)
    parser.add_argument("--out", required=True, metavar="PATH")
    parser.add_argument("--checkpoint", required=True, metavar="PATH")
    parser.add_argument(
        "--consumer",
        required=True,
        metavar="NAME",
        help="what the daemon knows this reader by: always the same for one checkpoint",
    )
    parser.add_argument(
        "--partition-by",
        action="append",
        metavar="COLUMN",
        help="repeatable (default: date, of enqueued_at)",
    )
    parser.add_argument("--body", metavar="SCHEMA", help="of payloads that are JSON objects")
    parser.add_argument("--every", metavar="INTERVAL", help="do not end; look this often, as '30s'")
    _common(parser)


def _replay(commands: Any) -> None:
    parser = _command(
        commands,
        "replay",
        "dead letters, changed or not, back into a queue",
        """\
        Chooses dead letters, gives them a new payload if wanted, pushes them and then removes the
        originals. A replay that was interrupted is finished by the same command: what it does is
        kept in --work, and done once.

          python -m forebay.pipeline replay --queue crm --work /data/replays/monday \\
              --where "error LIKE '%timeout%' AND died_at > '2025-08-11'" \\
              --payload "regexp_replace(payload, 'http:', 'https:')"
        """,
    )
    parser.add_argument("--queue", required=True, help="whose dead letters")
    parser.add_argument("--work", required=True, metavar="PATH", help="a new directory")
    parser.add_argument("--to", metavar="QUEUE", help="where to (default: the same queue)")
    parser.add_argument(
        "--where", metavar="SQL", help="on id, key, payload, flow, action, error, died_at, …"
    )
    parser.add_argument("--payload", metavar="SQL", help="the new payload")
    parser.add_argument(
        "--read-option",
        dest="read_options",
        action=OneOption,
        default={},
        metavar="NAME=VALUE",
        help="of reading the letters: flow, action, error, socket or timeout; may be repeated",
    )
    _common(parser)


def _report(commands: Any) -> None:
    parser = _command(
        commands,
        "report",
        "the daemons' event logs to tables and a page",
        """\
        Makes Parquet tables and one HTML page of the event logs of any number of hosts:
        throughput, waits, retries, outages, bottlenecks, and what to size how. Daemons write the
        logs where the configuration has `events: {mode: all}` (or sampled).

          python -m forebay.pipeline report /var/lib/forebay/events --out /tmp/report
        """,
    )
    parser.add_argument("events", nargs="+", help="directories of event logs, or files")
    parser.add_argument("--out", required=True, metavar="PATH", help="where the tables go")
    parser.add_argument("--page", metavar="FILE", help="the page (default: OUT/report.html)")
    parser.add_argument("--title", default="forebay")
    parser.add_argument("--since", type=_moment, metavar="TIME", help="as 2025-08-12T06:00 (UTC)")
    parser.add_argument("--until", type=_moment, metavar="TIME")


def _moment(text: str) -> int:
    """Milliseconds since 1970; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _rule(text: str) -> tuple[str, str]:
    name, is_there, condition = text.partition(":")
    if not is_there or not condition.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME: CONDITION")
    return name.strip(), condition.strip()
