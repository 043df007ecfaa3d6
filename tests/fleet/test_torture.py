"""A minute of torture, with another seed each time: `FOREBAY_SEED` repeats one."""

import os
from typing import Final

import pytest

from tests.fleet.faults import BACK_S, FOUND_OUT_S, Fault
from tests.fleet.torture import LEASED_S, TOLD_S, Delivery, check_excused, new_seed, torture

SECONDS: Final = float(os.environ.get("FOREBAY_TORTURE_SECONDS", "60"))


def test_the_books_of_a_fleet_balance_whatever_happens_to_it() -> None:
    seed = new_seed()
    print(f"FOREBAY_SEED={seed}")
    print(torture(SECONDS, seed))


TWICE: Final = [Delivery(100, "b", "id", "a1-1 k1", 0), Delivery(101, "c", "id", "a1-1 k1", 0)]
SLOW: Final = [Delivery(100, "b", "id", "a1-1 k1", 0), Delivery(110, "c", "id", "a1-1 k1", 0)]


@pytest.mark.parametrize(
    "many, fault",
    [
        (TWICE, Fault("freeze", "b", 100.5, 103)),
        (TWICE, Fault("freeze", "a", 90, 100 - LEASED_S - FOUND_OUT_S)),
        (TWICE, Fault("kill", "valkey", 90, 100 - LEASED_S - BACK_S)),
        (SLOW, Fault("stop", "postgres", 100 + TOLD_S)),
    ],
)
def test_what_was_in_hand_at_a_fault_may_come_again(many: list[Delivery], fault: Fault) -> None:
    check_excused(many, [fault])


@pytest.mark.parametrize(
    "many, fault",
    [
        (TWICE, Fault("freeze", "c", 100.5, 103)),
        (TWICE, Fault("stop", "postgres", 101.1, 103)),
        (TWICE, Fault("freeze", "b", 90, 97)),
        (SLOW, Fault("stop", "postgres", 100.1 + TOLD_S, 120)),
    ],
    ids=["of somebody else", "after it came again", "long over", "after it was recorded"],
)
def test_nothing_else_may(many: list[Delivery], fault: Fault) -> None:
    with pytest.raises(AssertionError, match="without a reason"):
        check_excused(many, [fault])


def test_a_try_that_failed_is_no_duplicate() -> None:
    first, again = TWICE
    check_excused([first, again._replace(attempt=1)], [])
