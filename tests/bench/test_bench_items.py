"""The benchmarks' items are what docs/benchmarks.md says they are."""

from statistics import mean

import pytest

from bench.items import ITEM_BYTES, crm_items, crm_runs, restamp
from forebay.run import encode_run, read_run
from forebay.snappy import compress


def test_items_have_about_300_bytes() -> None:
    assert mean(map(len, crm_items(1000))) == pytest.approx(ITEM_BYTES, abs=10)


def test_snappy_makes_a_run_about_two_and_a_half_times_smaller() -> None:
    assert compress is not None
    payloads = b"".join(crm_items(1000))
    assert len(payloads) / len(compress(payloads)) == pytest.approx(2.5, abs=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_run_is_at_most_5_percent_longer_than_its_payloads_compressed(seed: int) -> None:
    assert compress is not None
    payloads = crm_items(1000, seed)
    assert len(encode_run(payloads, queue="bench")) <= 1.05 * len(compress(b"".join(payloads)))


def test_a_seed_gives_the_same_items_again() -> None:
    assert crm_items(10, seed=3) == crm_items(10, seed=3)
    assert crm_items(10, seed=3) != crm_items(10, seed=4)


def test_runs_do_not_share_items() -> None:
    first, second = crm_runs(2, 50)
    assert not set(first) & set(second)


@pytest.mark.parametrize("compressed", [True, False])
def test_restamped_run_is_good_and_differs_in_its_id_alone(compressed: bool) -> None:
    payloads = crm_items(20)
    run = encode_run(payloads, queue="bench", compressed=compressed)

    stamped = read_run(restamp(run))

    assert stamped.payloads() == payloads
    assert stamped.head.run_id != read_run(run).head.run_id
    assert len(stamped.data) == len(run)
