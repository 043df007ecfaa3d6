"""When a group is told, and what is said: tables on a clock that the test moves."""

from itertools import count
from typing import Any

import pytest

from actors.config.observers import NotificationSettings
from actors.model.outcomes import Conclusion
from actors.model.slices import InJournal, ItemError, LentRun, Slice
from actors.observers.batch import Batch
from actors.observers.notices import (
    GROUPS_MAX,
    SAMPLES_MAX,
    SEVERAL,
    Grouping,
    Incident,
    Notice,
    dead_incidents,
    sample_ids,
)
from actors.ports.tiers import Leased
from forebay.ids import new_run_id
from forebay.run import encode_run, read_head

Told = list[tuple[float, str, int]]


def settings(**keys: Any) -> NotificationSettings:
    return NotificationSettings.model_validate({"queue": "ops", **keys})


def dead(queue: str = "crm", items: int = 1, kind: str = "timeout", text: str = "late") -> Incident:
    return Incident("dead", queue, kind, text, items, (f"{queue}-{items}",), at_ms=0)


class Play:
    """Adds incidents at their times, and asks whenever the grouping wants to be asked."""

    def __init__(self, **keys: Any) -> None:
        self.grouping = Grouping("pager", settings(**keys))
        self.told: list[tuple[float, Notice]] = []
        self._ids = count(1)

    def run(self, script: dict[float, list[Incident]], until: float) -> Told:
        waiting = sorted(script)
        while True:
            asked = self.grouping.next_at()
            at = min((t for t in (*waiting[:1], asked) if t is not None), default=None)
            if at is None or at > until:
                return [(t, notice.source, notice.count) for t, notice in self.told]
            if waiting and waiting[0] == at:
                for incident in script[waiting.pop(0)]:
                    self.grouping.add(incident, at)
            new = self.grouping.due(at, lambda: str(next(self._ids)))
            self.told += [(at, notice) for notice in new]


class TestWhen:
    @pytest.mark.parametrize(
        "script, told",
        [
            pytest.param({}, [], id="nothing happened"),
            pytest.param({5: [dead()]}, [(5, "crm", 1)], id="the first is told at once"),
            pytest.param(
                {5: [dead()], 6: [dead(items=2)], 64: [dead(items=3)]},
                [(5, "crm", 1), (65, "crm", 5)],
                id="what follows, once in a window, with the count",
            ),
            pytest.param(
                {0: [dead()], 1: [dead()], 61: [dead()], 119: [dead()]},
                [(0, "crm", 1), (60, "crm", 1), (120, "crm", 2)],
                id="a window after the window",
            ),
            pytest.param(
                {0: [dead()], 60: [dead()], 125: [dead()]},
                [(0, "crm", 1), (60, "crm", 1), (125, "crm", 1)],
                id="after a quiet window at once again",
            ),
            pytest.param(
                {0: [dead("a"), dead("b"), dead("a")], 10: [dead("b")]},
                [(0, "a", 2), (0, "b", 1), (60, "b", 1)],
                id="queues are told apart",
            ),
            pytest.param(
                {0: [dead(kind="timeout")], 1: [dead(kind="exit")]},
                [(0, "crm", 1), (1, "crm", 1)],
                id="kinds of errors are told apart",
            ),
        ],
    )
    def test_groups(self, script: dict[float, list[Incident]], told: Told) -> None:
        assert Play().run(script, until=1000) == told

    def test_no_minute_has_more_than_the_rate(self) -> None:
        play = Play(rate=2)
        queues = "abcde"
        told = play.run({0: [dead(queue) for queue in queues]}, until=1000)
        assert [(at, queue) for at, queue, _ in told] == [
            (0, "a"), (0, "b"), (60, "c"), (60, "d"), (120, "e"),
        ]  # fmt: skip

    def test_what_the_rate_holds_back_gathers_and_is_told_whole(self) -> None:
        play = Play(rate=1)
        script = {0.0: [dead("a")], 1.0: [dead("b")], 2.0: [dead("b", 5)], 70.0: [dead("b")]}
        assert play.run(script, until=1000) == [(0, "a", 1), (60, "b", 6), (120, "b", 1)]
        assert play.grouping.suppressed_total == 1

    def test_who_has_waited_longest_is_told_first(self) -> None:
        script = {0.0: [dead("a")], 10.0: [dead("b")], 20.0: [dead("c"), dead("a")]}
        told = Play(rate=1).run(script, until=1000)
        assert [queue for _, queue, _ in told] == ["a", "b", "c", "a"]

    def test_it_is_asked_for_nothing_when_all_was_told(self) -> None:
        play = Play()
        play.run({0: [dead()]}, until=1000)
        assert play.grouping.next_at() is None
        assert len(play.grouping) == 0

    def test_the_last_time_windows_are_not_waited_for(self) -> None:
        grouping = Grouping("pager", settings())
        grouping.add(dead(), 0)
        assert len(grouping.due(0, str)) == 1
        grouping.add(dead(items=7), 1)
        assert grouping.due(1, str) == []
        assert [notice.count for notice in grouping.due(1, str, is_last=True)] == [7]


class TestWhat:
    def test_a_notice_has_the_span_the_latest_error_and_a_few_ids(self) -> None:
        grouping = Grouping("pager", settings())
        for number in range(SAMPLES_MAX + 5):
            text = f"error {number}"
            found = Incident("dead", "crm", "other", text, 2, (f"x-{number}",), 1000 + number)
            grouping.add(found, 0)
        (notice,) = grouping.due(0, lambda: "n1")
        assert notice.ids == tuple(f"x-{number}" for number in range(SAMPLES_MAX))
        assert (notice.first_ms, notice.last_ms) == (1000, 1000 + SAMPLES_MAX + 4)
        assert notice.text == f"30 items are dead letters of crm: error {SAMPLES_MAX + 4}"
        assert notice.fields()["queue"] == "crm"
        assert notice.fields()["trigger"] is None
        assert grouping.suppressed_total == SAMPLES_MAX + 4

    def test_a_trigger_is_named(self) -> None:
        grouping = Grouping("pager", settings())
        grouping.add(Incident("trigger_failed", "nightly", "other", "no such queue", 1, (), 0), 0)
        (notice,) = grouping.due(0, str)
        assert notice.text == "trigger nightly has failed: no such queue"
        assert (notice.fields()["queue"], notice.fields()["trigger"]) == (None, "nightly")

    @pytest.mark.parametrize(
        "group_by, told",
        [
            (["queue", "error_type"], 4),
            (["queue"], 2),
            (["error_type"], 2),
            ([], 1),
        ],
    )
    def test_what_is_told_together_is_configured(self, group_by: list[str], told: int) -> None:
        play = Play(group_by=group_by)
        found = [dead(queue, kind=kind) for queue in "ab" for kind in ("timeout", "exit")]
        assert len(play.run({0: found}, until=0)) == told
        names = {notice.source for _, notice in play.told}
        assert names == ({"a", "b"} if "queue" in group_by else {SEVERAL})

    def test_groups_are_bounded_and_nothing_is_left_out(self) -> None:
        grouping = Grouping("pager", settings(rate=1000))
        for number in range(3 * GROUPS_MAX):
            grouping.add(dead(f"q{number}"), 0)
        notices = grouping.due(0, str)
        assert len(notices) == len(grouping) == GROUPS_MAX + 1
        assert sum(notice.count for notice in notices) == 3 * GROUPS_MAX
        assert notices[-1].source == SEVERAL


class TestDeadIncidents:
    def test_a_batch_is_an_incident_for_each_kind_of_error(self) -> None:
        def settled(bits: int, *dead: tuple[int, str]) -> tuple[Leased, Conclusion]:
            data = encode_run([b"x"] * 100, queue="crm", run_id=bytes(16))
            run = LentRun(read_head(data), data, InJournal(1, 1))
            slices = tuple(
                Slice(run, which, 1, 0, (ItemError(1, 0, text),)) for which, text in dead
            )
            return Leased(1, Slice(run, bits), 0), Conclusion(0, (), slices)

        pairs = [
            settled(0b111, (0b001, "503 from x"), (0b110, "500 from x")),
            settled(1 << 50, (1 << 50, "it took longer than 5s")),
            settled((1 << 40) - 1, ((1 << 40) - 1, "502 from y")),
        ]
        found = dead_incidents(Batch("crm", pairs, [True, False, True], at_ms=9))
        (incident,) = found
        assert (incident.error_type, incident.count, incident.at_ms) == ("server_error", 43, 9)
        assert incident.error == "502 from y"
        assert len(incident.ids) == SAMPLES_MAX
        assert [each.rpartition("-")[2] for each in incident.ids[:4]] == ["0", "1", "2", "0"]


@pytest.mark.parametrize("size, shown", [(100, 1), (100_000, 0)])
def test_a_large_run_is_not_unpacked_for_an_id(size: int, shown: int) -> None:
    run_id = new_run_id()
    ids = [run_id + index.to_bytes(2, "little") for index in range(2)]
    data = encode_run([b"x" * size] * 2, queue="crm", item_ids=ids)
    slice_ = Slice(LentRun(read_head(data), data, InJournal(1, 0)), 0b11)
    assert len(sample_ids([slice_])) == shown
