"""The event log: what is noted, what is dropped and never in the way, and the files it is in."""

import gzip
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from actors.config.observers import EventSettings
from actors.config.queue import QueueSettings
from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.slices import InJournal, LentRun, Slice, item_bits
from actors.observers import event_log
from actors.observers.batch import Batch
from actors.observers.event_log import EventLog, watch_stores
from actors.observers.events import (
    COLUMNS,
    DaemonChanged,
    Event,
    EventsLost,
    QueueStaffed,
    Sending,
    SliceEnded,
    StoreChanged,
    is_sampled,
    slices_ended,
)
from actors.ports.tiers import Leased
from actors.workers.retry import conclude
from daemon.events.files import EventFiles
from daemon.events.lines import LineFormat
from daemon.events.parquet import ParquetFormat
from forebay.ids import new_run_id
from forebay.run import encode_run, read_head

NOW_MS = 1_755_000_000_000
SENDING = Sending("http://crm", 10, NOW_MS + 300, 20.5)
EVERYWHERE: dict[str, str | int | float] = {"host": "a", "pid": 7, "sample": 1.0}


def lease(items: int = 10, attempt: int = 0, due_ms: int = 0, **head: Any) -> Leased:
    data = encode_run(queue="crm", payloads=[b"x" * 90] * items, enqueued_ms=NOW_MS, **head)
    run = LentRun(read_head(data), data, InJournal(1, 0))
    return Leased(1, Slice(run, item_bits(0, items), attempt, due_ms), NOW_MS + 60_000)


def ended(
    leased: Sequence[Leased], report: Report | Failure, share: float = 1.0
) -> list[SliceEnded]:
    slices = [one.slice for one in leased]
    conclusions = conclude(slices, report, QueueSettings(max_retries=1), NOW_MS + 320, lambda: 0.0)
    return slices_ended(
        "crm", SENDING, list(zip(leased, conclusions, strict=True)), NOW_MS + 320, share
    )


class TestWhatIsNoted:
    def test_a_slice_that_was_delivered_is_one_event_with_its_times(self) -> None:
        (event,) = ended([lease(flow="eu", action="upsert")], Report())
        row = event.row()
        assert row | {"run": "", "bytes": 0} == {
            "kind": "slice",
            "at_ms": NOW_MS + 320,
            "queue": "crm",
            "flow": "eu",
            "action": "upsert",
            "priority": 5,
            "destination": "http://crm",
            "run": "",
            "items": 10,
            "bytes": 0,
            "attempt": 1,
            "outcome": "delivered",
            "error": None,
            "enqueued_ms": NOW_MS,
            "started_ms": NOW_MS + 300,
            "wait_ms": 300,
            "processing_ms": 20.5,
            "batch_items": 10,
        }
        assert row["bytes"] > 0

    def test_each_outcome_of_a_slice_is_an_event_and_the_items_add_up(self) -> None:
        refused = Failure("HTTP 422", is_permanent=True)
        later = Failure("HTTP 503")
        report = Report((ItemsFailed(0, 0b11, refused), ItemsFailed(0, 0b11100, later)))
        found = {event.outcome: event for event in ended([lease()], report)}
        assert {name: event.items for name, event in found.items()} == {
            "delivered": 5,
            "retry": 3,
            "dead": 2,
        }
        assert found["dead"].error == "HTTP 422"
        assert found["retry"].error == "HTTP 503"
        assert found["delivered"].error is None

    def test_a_retry_waits_from_when_it_was_due(self) -> None:
        (event,) = ended([lease(attempt=1, due_ms=NOW_MS + 290)], Report())
        assert (event.attempt, event.wait_ms) == (2, 10)

    def test_clocks_that_differ_make_no_negative_wait(self) -> None:
        (event,) = ended([lease(due_ms=NOW_MS + 500)], Report())
        assert event.wait_ms == 0

    def test_what_was_given_back_untried_is_no_outcome(self) -> None:
        one = lease()
        untouched = conclude([one.slice], Report(), QueueSettings(), NOW_MS, lambda: 0.0)[0]
        given_back = untouched._replace(delivered=0, again=(one.slice,))
        assert slices_ended("crm", SENDING, [(one, given_back)], NOW_MS, 1.0) == []

    def test_an_event_holds_no_reference_to_the_runs_bytes(self) -> None:
        one = lease()
        (event,) = ended([one], Report())
        assert not any(value is one.slice.run.data for value in event)

    def test_a_run_is_in_the_sample_in_whole_and_the_share_is_kept(self) -> None:
        ids = [new_run_id() for _ in range(4000)]
        taken = [run_id for run_id in ids if is_sampled(run_id, 0.25)]
        assert 800 < len(taken) < 1200
        assert all(is_sampled(run_id, 0.25) for run_id in taken)
        assert all(is_sampled(run_id, 1) for run_id in ids)
        one = lease()
        run_id = one.slice.run.head.run_id
        whole = 1 if is_sampled(run_id, 0.5) else 0
        assert len(ended([one], Report(), 0.5)) == whole

    def test_every_kind_has_columns_of_the_table_only(self) -> None:
        events: list[Event] = [
            *ended([lease()], Report()),
            DaemonChanged(1, "started"),
            QueueStaffed(1, "crm", "http://crm", 4, 500, 0, 5000),
            StoreChanged(1, "cold", True),
            EventsLost(1, 3),
        ]
        for event in events:
            assert event.row().keys() <= COLUMNS.keys()


class Sink:
    """Keeps what it is given; can be told to fail."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_broken = False
        self.is_closed = False

    def write(self, events: Sequence[Event], now_s: float) -> None:
        if self.is_broken:
            raise OSError(28, "No space left on device")
        self.events += events

    def close(self, now_s: float) -> None:
        self.is_closed = True


def kinds(sink: Sink) -> list[str]:
    return [event.row()["kind"] for event in sink.events]


class TestTheLog:
    async def test_what_was_noted_is_written_when_it_closes(self) -> None:
        sink = Sink()
        events = EventLog(EventSettings(mode="all"), sink, lambda: NOW_MS)
        async with trio.open_nursery() as nursery:
            await nursery.start(events.run)
            one = lease()
            concluded = conclude([one.slice], Report(), QueueSettings(), NOW_MS, lambda: 0.0)
            events.settled(Batch("crm", [(one, concluded[0])], [True], NOW_MS, SENDING))
            events.note(DaemonChanged(NOW_MS, "stopped"))
            await events.close()
        assert kinds(sink) == ["slice", "daemon"]
        assert sink.is_closed
        assert events.figures() == {"mode": "all", "written_total": 2, "dropped_total": 0}

    async def test_off_is_off(self) -> None:
        events = EventLog(EventSettings(), None, lambda: NOW_MS)
        assert not events.is_on
        async with trio.open_nursery() as nursery:
            await nursery.start(events.run)
            events.note(DaemonChanged(NOW_MS, "started"))
            await events.close()
        assert events.figures()["written_total"] == 0

    async def test_past_the_bound_events_are_dropped_and_the_log_says_how_many(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "EVENTS_MAX", 3)
        sink = Sink()
        events = EventLog(EventSettings(mode="all"), sink, lambda: NOW_MS)
        for _ in range(5):
            events.note(DaemonChanged(NOW_MS, "started"))
        assert events.dropped_total == 2
        async with trio.open_nursery() as nursery:
            await nursery.start(events.run)
            await events.close()
        assert kinds(sink)[:3] == ["daemon"] * 3
        assert events.written_total + events.dropped_total >= 5

    async def test_a_disk_that_takes_nothing_costs_events_and_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "FLUSH_S", 0)
        sink = Sink()
        sink.is_broken = True
        events = EventLog(EventSettings(mode="all"), sink, lambda: NOW_MS)
        async with trio.open_nursery() as nursery:
            await nursery.start(events.run)
            events.note(DaemonChanged(NOW_MS, "started"))
            while not events.dropped_total:
                await trio.lowlevel.checkpoint()
            sink.is_broken = False
            while "lost" not in kinds(sink):
                await trio.lowlevel.checkpoint()
            await events.close()
        (lost,) = sink.events
        assert lost.row()["count"] == 1

    async def test_a_store_that_goes_away_and_comes_back_is_two_events(
        self, autojump_clock: trio.testing.MockClock
    ) -> None:
        sink = Sink()
        events = EventLog(EventSettings(mode="all"), sink, lambda: NOW_MS)
        seen = iter([False, True, True, False, False])
        scope = trio.CancelScope()

        def look() -> bool:
            is_away = next(seen, None)
            if is_away is None:
                scope.cancel()
            return bool(is_away)

        with scope:
            await watch_stores(events, lambda: {"cold": look()}, lambda: NOW_MS)
        async with trio.open_nursery() as nursery:
            await nursery.start(events.run)
            await events.close()
        states = [(event.row()["destination"], event.row()["state"]) for event in sink.events]
        assert states == [("cold", "away"), ("cold", "back")]


def lines_of(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines()


class TestFiles:
    def files(self, directory: Path, format_: Any = None, **settings: Any) -> EventFiles:
        made = EventSettings(mode="all", **settings)
        return EventFiles(directory, "a", format_ or LineFormat(EVERYWHERE), made)

    def events(self, number: int) -> list[Event]:
        return list(ended([lease() for _ in range(number)], Report()))

    def test_lines_are_in_a_part_and_then_in_a_whole_file(self, tmp_path: Path) -> None:
        files = self.files(tmp_path, roll_interval="10s")
        files.write(self.events(2), 100.0)
        assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
        files.write([], 109.9)
        assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
        files.write([], 110.0)
        (path,) = tmp_path.iterdir()
        assert path.name.startswith("a-")
        rows = [json.loads(line) for line in lines_of(path)]
        assert [(row["items"], row["host"], row["pid"], row["sample"]) for row in rows] == [
            (10, "a", 7, 1.0)
        ] * 2
        assert "error" not in rows[0]

    def test_a_new_file_after_so_many_bytes(self, tmp_path: Path) -> None:
        files = self.files(tmp_path, roll_bytes="64Ki", max_bytes="1Mi")
        for _ in range(10):
            files.write(self.events(1000), 100.0)
        assert len([p for p in tmp_path.iterdir() if p.suffix == ".gz"]) >= 2

    def test_the_oldest_go_and_those_of_other_hosts_stay(self, tmp_path: Path) -> None:
        for day in range(1, 5):
            (tmp_path / f"a-2025010{day}T000000Z-0000.ndjson.gz").write_bytes(bytes(30_000))
        (tmp_path / "b-20240101T000000Z-0000.ndjson.gz").write_bytes(bytes(30_000))
        (tmp_path / "a-notes.txt").write_bytes(bytes(30_000))
        files = self.files(tmp_path, roll_bytes="64Ki", max_bytes="128Ki")
        files.write([], 0.0)
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == [
            "a-20250103T000000Z-0000.ndjson.gz",
            "a-20250104T000000Z-0000.ndjson.gz",
            "a-notes.txt",
            "b-20240101T000000Z-0000.ndjson.gz",
        ]

    @pytest.mark.parametrize("cut", [1, 5, 30])
    def test_what_a_crash_cut_short_is_whole_as_far_as_it_was_written(
        self, tmp_path: Path, cut: int
    ) -> None:
        crashed = self.files(tmp_path)
        crashed.write(self.events(3), 0.0)
        crashed.write(self.events(4), 0.0)
        (part,) = tmp_path.iterdir()
        data = part.read_bytes()
        assert crashed._part is not None
        os.close(crashed._part.fd)  # as the end of the process does
        part.write_bytes(data[:-cut])
        self.files(tmp_path).write([], 0.0)
        (path,) = tmp_path.iterdir()
        assert path.suffix == ".gz"
        assert len(lines_of(path)) == 3

    def test_parquet_has_all_columns_and_a_crash_leaves_no_file_that_cannot_be_read(
        self, tmp_path: Path
    ) -> None:
        files = self.files(tmp_path, ParquetFormat(EVERYWHERE))
        files.write(self.events(3), 0.0)
        files.write([DaemonChanged(5, "stopped")], 0.0)
        files.close(0.0)
        (path,) = tmp_path.iterdir()
        table = pq.read_table(path)
        assert table.column_names == list(COLUMNS)
        assert table.column("kind").to_pylist() == ["slice"] * 3 + ["daemon"]
        assert table.column("host").to_pylist() == ["a"] * 4

        crashed = self.files(tmp_path, ParquetFormat(EVERYWHERE))
        crashed.write(self.events(3), 0.0)
        part, body = crashed._part, crashed._body
        assert part is not None
        assert body is not None
        body.let_go()
        os.close(part.fd)
        self.files(tmp_path, ParquetFormat(EVERYWHERE)).write([], 0.0)
        assert [p.name for p in tmp_path.iterdir()] == [path.name]

    def test_a_write_that_fails_gives_the_file_up_and_the_next_one_finishes_it(
        self, tmp_path: Path
    ) -> None:
        files = self.files(tmp_path)
        files.write(self.events(2), 0.0)
        part = files._part
        assert part is not None
        read_only = os.open(part.part_path, os.O_RDONLY)
        os.dup2(read_only, part.fd)
        os.close(read_only)
        with pytest.raises(OSError, match="Bad file descriptor"):
            files.write(self.events(1), 0.0)
        files.write(self.events(1), 0.0)
        files.close(0.0)
        assert [len(lines_of(path)) for path in sorted(tmp_path.iterdir())] == [2, 1]

    def test_many_members_are_one_stream_for_who_reads_them(self, tmp_path: Path) -> None:
        files = self.files(tmp_path)
        for number in range(1, 4):
            files.write(self.events(number), 0.0)
        files.close(0.0)
        (path,) = tmp_path.iterdir()
        assert len(lines_of(path)) == 6
        unpacker = zlib.decompressobj(31)
        unpacker.decompress(path.read_bytes())
        assert unpacker.unused_data
