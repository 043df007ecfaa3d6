"""Who may be stored when the spool is full, as a table."""

from dataclasses import replace

import pytest

from actors.spooler.intake import PINNED_FACTOR, Fill, FullPolicy, Verdict, admit
from forebay.errors import Refused
from tests.actors.spooler.spooling import KIB, spool_settings

SETTINGS = spool_settings(max_bytes=1000 * KIB, max_size=10, min_free_bytes=KIB)
EMPTY = Fill(live_runs=0, live_bytes=0, disk_bytes=0, disk_is_low=False)


@pytest.mark.parametrize("policy", ["block", "drop_newest", "drop_oldest"])
@pytest.mark.parametrize(
    "fill, size",
    [
        (EMPTY, 1),
        (EMPTY, 1000 * KIB),
        (replace(EMPTY, live_runs=9), 1),
        (replace(EMPTY, live_bytes=999 * KIB), KIB),
        (replace(EMPTY, disk_bytes=PINNED_FACTOR * 1000 * KIB - 1), 1),
    ],
)
def test_what_fits_is_stored_whatever_the_policy(fill: Fill, size: int, policy: FullPolicy) -> None:
    assert admit(fill, size, policy, SETTINGS) is Verdict.STORE


@pytest.mark.parametrize(
    "policy, expected",
    [
        ("block", Verdict.WAIT),
        ("drop_oldest", Verdict.DROP_OLDEST),
        ("drop_newest", "QUEUE_FULL"),
    ],
)
@pytest.mark.parametrize(
    "fill, named",
    [
        (replace(EMPTY, live_runs=10), "max_size is 10 runs"),
        (replace(EMPTY, live_bytes=1000 * KIB), "max_bytes is 1000Ki"),
    ],
    ids=["runs", "bytes"],
)
def test_a_full_spool_does_as_the_policy_says(
    fill: Fill, named: str, policy: FullPolicy, expected: Verdict | str
) -> None:
    verdict = admit(fill, 1, policy, SETTINGS)
    if isinstance(verdict, Refused):
        assert verdict.code == expected
        assert named in verdict.text
    else:
        assert verdict is expected


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_chunks_that_old_items_keep_alive_are_not_freed_by_dropping(policy: FullPolicy) -> None:
    pinned = replace(EMPTY, disk_bytes=PINNED_FACTOR * 1000 * KIB, live_runs=10)
    assert admit(pinned, 1, policy, SETTINGS) is Verdict.WAIT


def test_chunks_that_old_items_keep_alive_are_named_in_the_refusal() -> None:
    pinned = replace(EMPTY, disk_bytes=PINNED_FACTOR * 1000 * KIB)
    verdict = admit(pinned, 1, "drop_newest", SETTINGS)
    assert isinstance(verdict, Refused)
    assert "kept alive by old items" in verdict.text


@pytest.mark.parametrize("policy", ["block", "drop_newest", "drop_oldest"])
def test_a_full_disk_refuses_whatever_the_policy(policy: FullPolicy) -> None:
    verdict = admit(replace(EMPTY, disk_is_low=True, live_runs=10), 1, policy, SETTINGS)
    assert isinstance(verdict, Refused)
    assert verdict.code == "DISK_FULL"
    assert verdict.retryable


def test_zero_runs_means_no_limit_on_runs() -> None:
    settings = spool_settings(max_size=0)
    assert admit(replace(EMPTY, live_runs=10**9), 1, "drop_newest", settings) is Verdict.STORE
