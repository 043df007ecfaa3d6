"""The demonstration must not say that books balance which do not."""

import io
import json

import pytest
from rich.console import Console

from bench.demo import destination
from bench.demo.__main__ import _problems
from bench.demo.board import LINE_S, Board
from bench.demo.destination import Memory
from bench.demo.patience import Failed, Patience

BOOKS = {"accepted": 100, "delivered": 98, "dead": 2}
TAKEN = {"items": 98, "events": 98}


def batch(*customers: int, run: str = "r") -> bytes:
    lines = []
    for index, customer in enumerate(customers):
        payload = json.dumps({"customer_id": customer, "event_id": customer})
        lines.append(json.dumps({"id": f"{run}-{index}", "payload": payload}))
    return "\n".join(lines).encode()


def test_books_that_balance_are_no_problem() -> None:
    assert _problems(100, BOOKS, TAKEN) == []


@pytest.mark.parametrize(
    "clean, books, taken",
    [
        (101, BOOKS, TAKEN),
        (100, BOOKS | {"dead": 1}, TAKEN),
        (100, BOOKS, TAKEN | {"events": 97}),
        (100, BOOKS, {"items": 97, "events": 97}),
    ],
    ids=["a row is missing", "an item is lost", "an event came twice", "nobody took it"],
)
def test_books_that_do_not_balance_are_named(
    clean: int, books: dict[str, int], taken: dict[str, int]
) -> None:
    assert _problems(clean, books, taken)


def test_destination_is_down_for_a_while_and_fails_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("bench.demo.destination.time.monotonic", lambda: now[0])
    memory = Memory()
    first = [memory.answer(batch(1, run=str(n)))[0] for n in range(destination.UP_REQUESTS + 5)]
    now[0] += destination.DOWN_S
    later = [memory.answer(batch(1, run=f"l{n}"))[0] for n in range(destination.FAILS_EVERY)]

    assert first == [200] * destination.UP_REQUESTS + [503] * 5
    assert sorted(set(later)) == [200, 500]
    assert later.count(500) == 1


def test_destination_refuses_customers_that_it_does_not_know_and_counts_what_came_twice() -> None:
    memory = Memory()
    status, answer = memory.answer(batch(destination.UNKNOWN_EVERY, 7))
    memory.answer(batch(destination.UNKNOWN_EVERY, 7))

    assert status == 200
    assert [result["status"] for result in answer["results"]] == [422, 200]
    report = memory.report()
    assert (report["taken"], report["items"], report["events"], report["refused"]) == (2, 1, 1, 2)


def test_patience_ends_only_when_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bench.demo.patience.time.monotonic", lambda: now[0])
    patience = Patience(idle_s=10)
    for count in range(100):
        now[0] += 9
        patience.look(count)
    now[0] += 9
    patience.look(99)

    now[0] += 2
    with pytest.raises(Failed, match="no progress for 10 s; the last look: 99"):
        patience.look(99)


def test_board_in_a_pipe_prints_a_line_only_when_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("bench.demo.board.time.monotonic", lambda: now[0])
    out = io.StringIO()
    board = Board(Console(file=out))
    for accepted in (1, 1, 1, 2, 2):
        now[0] += LINE_S
        stats = {"queues": {"crm": {"accepted": accepted}}, "breakers": {}}
        board.show("pushing", 10, stats)

    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "pushing: accepted 1",
        "pushing: accepted 2",
    ]
