"""The pipelines on real Spark: what is pushed, drained, replayed and reported adds up."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from actors.config.observers import EventSettings
from actors.observers import events as daemon_events
from actors.observers.events import (
    BreakerChanged,
    DaemonChanged,
    Event,
    EventsLost,
    QueueStaffed,
    Sending,
    SliceEnded,
    StoreChanged,
)
from daemon.events.files import EventFiles, Format
from daemon.events.lines import LineFormat
from daemon.events.parquet import ParquetFormat
from forebay import Control, connect
from forebay.ids import new_run_id
from forebay.pipeline import NoEvents, Rule, aggregates, drain, push, replay, report
from forebay.pipeline.__main__ import main
from forebay.pipeline.push_rows import TooManyBad
from forebay.pipeline.replay_letters import remover
from forebay.pipeline.report_events import COLUMNS, read_events
from forebay.spark.receipts import last_write
from tests.daemon.cli.commands import Host
from tests.spark.pulling import pull_all
from tests.spark.test_batch_reads import kill

RULES = [Rule("no e-mail", "email LIKE '%@%'"), Rule("too little", "amount > 5")]


def customers(spark: SparkSession, rows: int = 1000) -> DataFrame:
    """Every 10th has no e-mail address, every 100th none at all; amounts are the numbers."""
    email = F.when(F.col("id") % 100 == 0, None).when(F.col("id") % 10 == 0, "nobody")
    return spark.range(rows).select(
        "id", email.otherwise(F.lit("a@b.c")).alias("email"), F.col("id").alias("amount")
    )


class TestPush:
    def test_good_rows_are_items_and_bad_ones_lie_aside_with_the_reason(
        self, spark: SparkSession, host: Host, queue: str, tmp_path: Path
    ) -> None:
        pushed = push(
            spark,
            customers(spark),
            queue,
            rules=RULES,
            quarantine=str(tmp_path),
            key="CAST(id AS STRING)",
            options={"socket": str(host.socket)},
        )
        assert (pushed.rows, pushed.quarantined, pushed.pushed) == (1000, 105, 895)
        assert pushed.receipt is not None
        assert pushed.receipt.accepted == 895
        found = pull_all(host.socket, queue)
        assert sorted(item.json()["id"] for item in found) == [
            number for number in range(1000) if number % 10 and number > 5
        ]
        assert {item.key for item in found} == {str(item.json()["id"]) for item in found}
        reasons = spark.read.parquet(str(tmp_path)).groupBy("reason").count().collect()
        assert {row["reason"]: row["count"] for row in reasons} == {
            "no e-mail": 99,
            "too little": 5,
            "no e-mail; too little": 1,
        }

    def test_too_many_bad_rows_and_nothing_is_pushed(
        self, spark: SparkSession, host: Host, queue: str, tmp_path: Path
    ) -> None:
        with pytest.raises(TooManyBad, match=r"105 of 1,000 rows break a rule \(10.5%"):
            push(
                spark,
                customers(spark),
                queue,
                rules=RULES,
                quarantine=str(tmp_path),
                bad_share_max=0.05,
                options={"socket": str(host.socket)},
            )
        assert pull_all(host.socket, queue) == []

    def test_without_rules_all_rows_are_items_with_payload_priority_and_flow(
        self, spark: SparkSession, host: Host, queue: str
    ) -> None:
        pushed = push(
            spark,
            customers(spark, 50),
            queue,
            payload="concat('id ', id)",
            priority="CAST(id % 2 AS INT)",
            flow="IF(id < 25, 'old', 'new')",
            options={"socket": str(host.socket)},
        )
        assert (pushed.rows, pushed.quarantined, pushed.quarantine) == (50, 0, None)
        found = {(item.text, item.priority, item.flow) for item in pull_all(host.socket, queue)}
        assert found == {
            (f"id {number}", number % 2, "old" if number < 25 else "new") for number in range(50)
        }

    def test_a_version_is_pushed_once_from_files_by_the_command(
        self,
        spark: SparkSession,
        host: Host,
        queue: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        source = str(tmp_path / "customers")
        customers(spark, 100).write.csv(source, header=True)
        command = [
            "push",
            source,
            "--queue",
            queue,
            "--format",
            "csv",
            "--socket",
            str(host.socket),
        ]
        command += ["--read-option", "header=true", "--app", queue, "--version", "3"]
        command += ["--rule", "no e-mail: email LIKE '%@%'", "--quarantine", str(tmp_path / "bad")]
        for outcome, pushed in (("published", 90), ("duplicate", 0)):
            assert main(command) == 0
            out, err = capsys.readouterr()
            said = json.loads(out)
            assert (said["rows"], said["quarantined"]) == (100, 10)
            assert (said["outcome"], said["pushed"]) == (outcome, pushed)
            assert ("duplicate: nothing was pushed" in err) == (outcome == "duplicate")
        assert len(pull_all(host.socket, queue)) == 90
        assert spark.read.parquet(str(tmp_path / "bad")).count() == 10

    def test_a_duplicate_has_no_receipt_also_if_a_later_version_came_first(
        self, spark: SparkSession, host: Host, queue: str
    ) -> None:
        def pushed(to: str, rows: int, version: int | None) -> Any:
            return push(
                spark,
                customers(spark, rows),
                to,
                app=None if version is None else queue,
                version=version,
                options={"socket": str(host.socket)},
            )

        assert pushed(queue, 100, 2).receipt.accepted == 100
        assert pushed(f"{queue}-2", 10, None).receipt.queues == (f"{queue}-2",)
        for version in (1, 2):
            done = pushed(queue, 100, version)
            assert (done.outcome, done.pushed, done.receipt) == ("duplicate", 0, None)
            last = last_write(spark)
            assert last is not None
            assert (last.outcome, last.app, last.version) == ("duplicate", queue, version)
            # Of version 1 no write is known; of version 2 it is the one that came first.
            assert (None if last.receipt is None else last.receipt.accepted) == (
                None if version == 1 else 100
            )
        assert len(pull_all(host.socket, queue)) == 100

    def test_bad_rows_of_two_feeds_lie_side_by_side(
        self, spark: SparkSession, host: Host, queue: str, tmp_path: Path
    ) -> None:
        def push_bad(feed: str, version: int | None) -> str | None:
            return push(
                spark,
                customers(spark, 10).withColumn("feed", F.lit(feed)),
                queue,
                rules=RULES,
                quarantine=str(tmp_path),
                app=None if version is None else f"{queue}/{feed}",
                version=version,
                options={"socket": str(host.socket)},
            ).quarantine

        for feed, version in (("eu", 1), ("us", 1), ("eu", 1), ("none", None), ("none", None)):
            push_bad(feed, version)
        found = spark.read.parquet(str(tmp_path)).groupBy("feed").count().collect()
        assert {row["feed"]: row["count"] for row in found} == {"eu": 6, "us": 6, "none": 12}


class TestDrain:
    def test_a_queue_is_parquet_each_item_once_and_the_next_time_only_what_is_new(
        self, spark: SparkSession, host: Host, queue: str, tmp_path: Path
    ) -> None:
        out = str(tmp_path / "out")

        def drained() -> Any:
            return drain(
                spark,
                queue,
                out,
                checkpoint=str(tmp_path / "checkpoint"),
                consumer="lake",
                body="id BIGINT",
                options={"socket": str(host.socket), "maxItemsPerTrigger": "400"},
            )

        with connect(host.socket) as client:
            client.push(queue, [json.dumps({"id": number}) for number in range(1000)])
            host.until_counts(queue, spooled=0)
            assert drained().items == 1000
            client.push(queue, [json.dumps({"id": number}) for number in range(1000, 1100)])
            host.until_counts(queue, cold=100)
            assert drained().items == 100
            host.until_counts(queue, held=0)
        rows = spark.read.parquet(out)
        assert "date" in rows.columns
        found = rows.agg(
            F.count("*"), F.countDistinct("id"), F.countDistinct("body.id"), F.max("body.id")
        ).first()
        assert found is not None
        assert tuple(found) == (1100, 1100, 1100, 1099)


class TestReplay:
    def test_chosen_letters_come_back_changed_under_their_ids_and_the_originals_go(
        self, spark: SparkSession, host: Host, queue: str, tmp_path: Path
    ) -> None:
        ids = kill(host, queue, 100)
        options = {"socket": str(host.socket)}
        for _ in range(2):  # the second time there is nothing left to do
            done = replay(
                spark,
                queue,
                work=str(tmp_path / "work"),
                where="error = 'gone'",
                payload="concat('again ', payload)",
                options=options,
            )
            assert done.letters == 50
        found = pull_all(host.socket, queue)
        assert len(found) == 50
        assert {item.id for item in found} < ids
        assert all(item.text.startswith('again {"n"') and item.attempt == 0 for item in found)
        with connect(host.socket) as client:
            left = list(Control(client.control).dead_letters({"queue": queue}))
        assert {letter["errors"][-1]["text"] for letter in left} == {"no such customer"}
        assert len(left) == 50

    def test_a_letter_that_died_again_meanwhile_is_not_removed(
        self, host: Host, queue: str
    ) -> None:
        ids = kill(host, queue, 10)
        with connect(host.socket) as client:
            control = Control(client.control)
            died_ms = [letter["died_ms"] for letter in control.dead_letters({"queue": queue})]
            remove = remover(queue, min(died_ms) - 1, str(host.socket))
            remove(iter(Id(item_id) for item_id in ids))  # type: ignore[misc]
            assert control.dead_count({"queue": queue}) == 10
            remover(queue, max(died_ms), str(host.socket))(
                iter(Id(item_id) for item_id in ids)  # type: ignore[misc]
            )
            assert control.dead_count({"queue": queue}) == 0

    def test_the_read_and_the_write_have_their_own_options(
        self,
        spark: SparkSession,
        host: Host,
        queue: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        kill(host, queue, 20)
        work = tmp_path / "work"
        command = ["replay", "--queue", queue, "--work", str(work), "--socket", str(host.socket)]
        command += ["--read-option", "error=gone", "--read-option", "timeout=20s"]
        assert main([*command, "--option", "error=gone"]) == 1
        assert "there is no such option" in capsys.readouterr().err
        assert not work.exists()
        assert main([*command, "--option", "runItems=5"]) == 0
        assert json.loads(capsys.readouterr().out) == {"letters": 10, "queue": queue}
        assert len(pull_all(host.socket, queue)) == 10


class Id:
    """A row with an id."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id


T0 = 1_755_000_000_000
CRM = "http://crm"


def host_events(sends: int) -> list[Event]:
    """A send a second, of two slices of 100 items; every tenth send fails once."""
    found: list[Event] = [
        DaemonChanged(T0, "started"),
        QueueStaffed(T0, "crm", CRM, 2, 500, 0, 5000),
        BreakerChanged(T0 + 10_000, CRM, "open", 5, "HTTP 503"),
        BreakerChanged(T0 + 11_000, CRM, "half_open", 5, "HTTP 503"),
        BreakerChanged(T0 + 12_000, CRM, "open", 6, "HTTP 503"),
        BreakerChanged(T0 + 15_000, CRM, "closed", 6, ""),
    ]
    for number in range(sends):
        started_ms = T0 + number * 1000
        sending = Sending(CRM, 200, started_ms, 500.0)
        outcome, error = ("retry", "HTTP 503") if number % 10 == 0 else ("delivered", None)
        for flow in ("eu", "us"):
            found.append(
                SliceEnded(
                    at_ms=started_ms + 500,
                    queue="crm",
                    flow=flow,
                    action="",
                    priority=5,
                    run_id=new_run_id(),
                    items=100,
                    bytes=30_000,
                    attempt=1,
                    outcome=outcome,  # type: ignore[arg-type]
                    error=error,
                    enqueued_ms=started_ms - 200,
                    ready_ms=started_ms - 200,
                    sending=sending,
                )
            )
    return found


def write_events(
    directory: Path, host: str, format_: type[Format], events: list[Event] | None = None
) -> None:
    everywhere: dict[str, str | int | float] = {"host": host, "pid": 1, "sample": 1.0}
    made: Any = format_
    files = EventFiles(directory / host, host, made(everywhere), EventSettings(mode="all"))
    files.write(host_events(60) if events is None else events, 0.0)
    files.close(0.0)


class TestReport:
    def test_the_columns_are_those_that_daemons_write(self) -> None:
        kinds = {"text": "string", "whole": "bigint", "real": "double"}
        assert {name: kinds[kind] for name, kind in daemon_events.COLUMNS.items()} == COLUMNS

    def test_logs_of_two_hosts_in_two_formats_are_one_report(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        write_events(tmp_path / "in", "a", LineFormat)
        write_events(tmp_path / "in", "b", ParquetFormat)
        (tmp_path / "in" / "a" / "a-20250101T000000Z-0000.ndjson.gz.part").write_bytes(b"torn")
        made = report(spark, [str(tmp_path / "in")], str(tmp_path / "out"))
        data = made.data
        assert (data.hosts, data.events, data.lost) == (2, 2 * 126, 0)
        assert {(flow.flow, flow.delivered, flow.retried) for flow in data.flows} == {
            ("eu", 10_800.0, 1_200.0),
            ("us", 10_800.0, 1_200.0),
        }
        assert {(flow.wait.p50, flow.processing.p99) for flow in data.flows} == {(200.0, 500.0)}
        (load,) = data.loads
        # 120 sends of half a second and 200 items, by 2 workers on each of 2 hosts.
        assert load.sends == pytest.approx(120)
        assert (load.send_s, load.batch, load.workers) == pytest.approx((0.5, 200, 4))
        assert load.busy_s == pytest.approx(60)
        assert load.arrival_mean == pytest.approx(24_000 / 61, rel=0.05)
        # Trials in between do not close a breaker.
        lasted = {(gap.host, gap.to_ms - gap.from_ms) for gap in data.gaps}
        assert lasted == {("a", 5000), ("b", 5000)}
        assert data.gaps_total == 2
        assert sum(step.delivered for step in data.steps) == 21_600
        steps = spark.read.parquet(made.tables["steps"])
        assert steps.agg(F.sum("delivered")).first() == (21_600.0,)
        page = Path(made.page).read_text()
        assert page.count("<svg") == 6
        assert "HTTP 503" in page

    def test_a_sample_speaks_for_all(self, spark: SparkSession, tmp_path: Path) -> None:
        everywhere: dict[str, str | int | float] = {"host": "a", "pid": 1, "sample": 0.25}
        files = EventFiles(tmp_path / "in", "a", LineFormat(everywhere), EventSettings(mode="all"))
        files.write(host_events(4), 0.0)
        files.close(0.0)
        slices = aggregates.slices(read_events(spark, [str(tmp_path / "in")]))
        (row,) = aggregates.by_queue(slices, 1).collect()
        assert (row.delivered, row.retried, row.sends, row.batch) == (2400.0, 800.0, 16.0, 200.0)

    def test_what_a_daemon_that_died_had_open_ends_with_its_life(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """In a container every life has the same process id."""
        away = StoreChanged(T0 + 6000, "cold", True)
        write_events(
            tmp_path / "in",
            "a",
            LineFormat,
            [
                QueueStaffed(T0 - 5, "crm", CRM, 2, 500, 0, 5000),
                DaemonChanged(T0, "started"),
                BreakerChanged(T0 + 5000, CRM, "open", 5, "HTTP 503"),
                away,
                EventsLost(T0 + 8000, 0),
                QueueStaffed(T0 + 19_995, "crm", CRM, 2, 500, 0, 5000),
                DaemonChanged(T0 + 20_000, "started"),
                BreakerChanged(T0 + 30_000, CRM, "open", 5, "HTTP 500"),
                BreakerChanged(T0 + 31_000, CRM, "closed", 5, ""),
                DaemonChanged(T0 + 40_000, "stopped"),
                DaemonChanged(T0 + 41_000, "started"),
                BreakerChanged(T0 + 42_000, CRM, "open", 5, "HTTP 404"),
                BreakerChanged(T0 + 45_000, CRM, "half_open", 5, "HTTP 404"),
            ],
        )
        write_events(tmp_path / "in", "b", LineFormat, [DaemonChanged(T0 + 100_000, "started")])
        made = report(spark, [str(tmp_path / "in")], str(tmp_path / "out"))
        found = {
            (gap.what, gap.from_ms - T0, gap.to_ms - T0, gap.is_over) for gap in made.data.gaps
        }
        assert found == {
            ("breaker", 5000, 8000, False),
            ("store", 6000, 8000, False),
            ("daemon", 8000, 19_995, True),
            ("breaker", 30_000, 31_000, True),
            ("daemon", 40_000, 41_000, True),
            ("breaker", 42_000, 45_000, False),
        }
        assert spark.read.parquet(made.tables["lives"]).count() == 4

    def test_without_events_it_says_so(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        with pytest.raises(NoEvents, match="no events there"):
            report(spark, [str(tmp_path / "in")], str(tmp_path / "out"))
