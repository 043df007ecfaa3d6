"""What the log says of failures: who can be told from whom, and never too much."""

import structlog.testing

from actors.model.outcomes import Conclusion
from actors.model.slices import InJournal, ItemError, LentRun, Slice
from actors.observers.batch import Batch
from actors.observers.failure_log import EVERY_S, LINES, FailureLog
from actors.ports.tiers import Leased
from forebay.ids import format_item_id
from forebay.run import encode_run, read_head

NO_CREDIT = ItemError(3, 1755000000000, "no credit", "business", "host/crm/worker", 1754999999000)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def leased_slice(**fields: object) -> Leased:
    data = encode_run([b"x"] * 4, queue="crm", **fields)  # type: ignore[arg-type]
    return Leased(1, Slice(LentRun(read_head(data), data, InJournal(1, 0)), 0b1111, 2), 0)


def dead(leased: Leased, bits: int) -> Conclusion:
    return Conclusion(0, (), (Slice(leased.slice.run, bits, 3, 0, (NO_CREDIT,)),))


def test_a_line_names_an_item_its_error_and_its_correlation() -> None:
    leased = leased_slice(headers={"X": "y", "x-correlation-id": "import-42"})
    with structlog.testing.capture_logs() as logs:
        FailureLog(Clock()).settled(Batch("crm", [(leased, dead(leased, 0b1100))], [True], at_ms=0))
    assert logs == [
        {
            "event": "delivery.dead",
            "log_level": "warning",
            "queue": "crm",
            "items": 2,
            "item": format_item_id(leased.slice.run.head.run_id, 2),
            "attempt": 3,
            "error": "no credit",
            "failure_reason": "business",
            "locked_by": "host/crm/worker",
            "correlation_id": "import-42",
        }
    ]


def test_nothing_is_said_of_what_is_delivered_given_back_or_no_longer_ours() -> None:
    leased = leased_slice()
    pairs = [
        (leased, Conclusion(0b1111)),
        (leased, Conclusion(0, (leased.slice,))),
        (leased, dead(leased, 0b1)),
    ]
    with structlog.testing.capture_logs() as logs:
        FailureLog(Clock()).settled(Batch("crm", pairs, [True, True, False], at_ms=0))
    assert logs == []


def test_a_flood_of_failures_is_a_few_lines_and_a_count() -> None:
    clock, leased = Clock(), leased_slice()
    failures = FailureLog(clock)
    with structlog.testing.capture_logs() as logs:
        for _ in range(LINES + 50):
            failures.settled(Batch("crm", [(leased, dead(leased, 0b11))], [True], at_ms=0))
        assert len(logs) == LINES
        clock.now += EVERY_S
        failures.settled(Batch("mail", [(leased, dead(leased, 0b1))], [True], at_ms=0))
        clock.now += EVERY_S
        failures.settled(Batch("crm", [(leased, dead(leased, 0b1))], [True], at_ms=0))
    assert "more_items" not in logs[-2]
    assert logs[-1]["more_items"] == 100
