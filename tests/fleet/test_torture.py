"""Minutes of faults in a fleet, with another seed each time; `FOREBAY_SEED` repeats one."""

import os
from typing import Final

import pytest

from tests.fleet.faults import BACK_S, FOUND_OUT_S, Fault
from tests.fleet.torture import Delivery, check_excused, new_seed, torture
from tests.fleet.witness import Held, Said

SECONDS: Final = float(os.environ.get("FOREBAY_TORTURE_SECONDS", "300"))


@pytest.mark.long
def test_the_books_of_a_fleet_balance_whatever_happens_to_it() -> None:
    seed = new_seed()
    print(f"FOREBAY_SEED={seed}")
    print(torture(SECONDS, seed))


FIRST: Final = Delivery(100, "b", "id", "a1-1 k1", 0)
TWICE: Final = [FIRST, Delivery(110, "c", "id", "a1-1 k1", 0)]
LEASED: Final = Held(99, "b", "")
LATE: Final = Held(109, "c", "")


def told(*held: Held, recorded: float | None = None, lock_of: str = "a") -> Said:
    at = {} if recorded is None else {"id": [recorded]}
    return Said({"id": list(held or (LEASED, LATE))}, at, {"lock": lock_of})


@pytest.mark.parametrize(
    "fault, said",
    [
        (Fault("freeze", "b", 99.5, 103), told()),
        (Fault("freeze", "b", 100.5, 103), told(recorded=101)),
        (Fault("freeze", "a", 90, 99 - FOUND_OUT_S), told(recorded=101)),
        (Fault("kill", "valkey", 90, 99 - BACK_S), told(recorded=101)),
        (Fault("stop", "postgres", 101), told(recorded=101)),
        # It was never recorded: it was in hand until it came again, also the second time.
        (Fault("freeze", "c", 109.5, 120), told()),
        # Whoever holds its row need neither deliver it nor have been given it.
        (Fault("freeze", "c", 99.5, 103), told(Held(99, "b", "lock"), lock_of="c")),
    ],
)
def test_what_was_in_hand_at_a_fault_may_come_again(fault: Fault, said: Said) -> None:
    check_excused(TWICE, [fault], said)


@pytest.mark.parametrize(
    "fault, said",
    [
        (Fault("freeze", "c", 100.5, 103), told(recorded=101)),
        (Fault("stop", "postgres", 110.1, 113), told()),
        (Fault("freeze", "b", 90, 98.9 - FOUND_OUT_S), told(recorded=101)),
        (Fault("stop", "postgres", 101.1, 108.9 - FOUND_OUT_S), told(recorded=101)),
        (Fault("freeze", "a", 99.5, 103), told(Held(99, "b", "lock"), lock_of="c")),
        (Fault("freeze", "b", 99.5, 103), Said({}, {}, {})),
    ],
    ids=[
        "of somebody else",
        "after it came again",
        "long over",
        "after it was recorded",
        "of a former owner",
        "of who never had it",
    ],
)
def test_nothing_else_may(fault: Fault, said: Said) -> None:
    with pytest.raises(AssertionError, match="without a reason"):
        check_excused(TWICE, [fault], said)


def test_a_try_that_failed_is_no_duplicate() -> None:
    check_excused([FIRST, TWICE[1]._replace(attempt=1)], [], told())
