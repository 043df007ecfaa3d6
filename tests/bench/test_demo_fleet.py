"""The demonstration of a fleet must not say that books balance which do not."""

from typing import Any

import pytest

from bench.demo.fleet import fleet_books, payloads, problems_of

BOOKS = {"accepted": 100, "delivered": 98, "dead": 2}
TAKEN = {"items": 98, "events": 98, "senders": {"/a": 40, "/b": 60}}


def test_books_that_balance_are_no_problem() -> None:
    assert problems_of(100, BOOKS, TAKEN) == []


@pytest.mark.parametrize(
    "books, taken",
    [
        (BOOKS | {"accepted": 101}, TAKEN),
        (BOOKS | {"dead": 1}, TAKEN),
        (BOOKS, TAKEN | {"events": 97}),
        (BOOKS, TAKEN | {"senders": {"/a": 100}}),
    ],
    ids=["accepted twice", "an item is lost", "an event came twice", "one host did nothing"],
)
def test_books_that_do_not_balance_are_named(books: dict[str, int], taken: dict[str, Any]) -> None:
    assert problems_of(100, books, taken)


def test_the_shared_store_counts_once() -> None:
    shared = {"crm": {"delivered": 30, "held": 5}}
    reports = [
        {"queues": {"crm": {"accepted": 60, "delivered": 50, "held": 15}}, "shared": shared},
        {"queues": {"crm": {"delivered": 31, "held": 5}}, "shared": shared},
    ]
    books = fleet_books(reports, "crm")
    assert (books["accepted"], books["delivered"], books["held"]) == (60, 51, 15)


def test_every_event_is_another() -> None:
    assert len(set(payloads(1000))) == 1000
