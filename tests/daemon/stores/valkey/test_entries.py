"""Slices as text: they come back as they were, sort as slices do, and are cut as slices are."""

from dataclasses import replace

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actors.model.slices import InCold, InJournal, ItemError, Slice, item_bits
from actors.ports.tiers import StoreCorrupt
from daemon.stores.valkey.entries import (
    lent_run,
    pack_bits,
    pack_entry,
    pack_token,
    run_key,
    unpack_bits,
    unpack_entry,
)
from tests.conformance.warm_rig import PLENTY, make_row, views
from tests.daemon.stores.valkey.fleet import fleet

ITEMS = 4096
LONG = make_row(1, ITEMS, item_size=0, flow="ä" * 9)
EVERY_OTHER = sum(1 << index for index in range(0, ITEMS, 2))

_ids = st.binary(min_size=16, max_size=16)
_owners = st.builds(InCold, _ids, _ids)
_stretches = st.lists(
    st.tuples(st.integers(0, ITEMS - 1), st.integers(1, 200)), min_size=1, max_size=30
)
_errors = st.lists(
    st.builds(ItemError, st.integers(0, 99), st.integers(0, 2**41), st.text(max_size=20)),
    max_size=3,
).map(tuple)


@st.composite
def _bits(draw: st.DrawFn) -> int:
    bits = 0
    for first, length in draw(_stretches):
        bits |= item_bits(first, min(ITEMS, first + length))
    return bits


@settings(deadline=None)
@given(_bits(), _owners, st.integers(0, 2**31), st.integers(0, 2**41), _errors)
def test_comes_back_as_it_was(
    bits: int, owner: InCold, attempt: int, due_ms: int, errors: tuple[ItemError, ...]
) -> None:
    run = replace(LONG, owner=owner)
    slice_ = Slice(run, bits, attempt, due_ms, errors)
    entry = unpack_entry(pack_entry(slice_))
    assert views([entry.as_slice(run)]) == views([slice_])
    assert (entry.run_key, entry.epoch, entry.has_run_out) == (run_key(run), owner.lock, False)
    back = lent_run(entry.run_key, run.data, entry.epoch)
    assert (back.owner, back.head) == (owner, run.head)


@pytest.mark.parametrize(
    "owner",
    [
        InJournal(1, 1),
        InCold(bytes(15), bytes(16)),
        InCold(bytes(16), bytes(17)),
    ],
)
def test_only_rows_are_entries(owner: InJournal | InCold) -> None:
    with pytest.raises(ValueError, match="only rows of the cold store"):
        pack_entry(Slice(replace(LONG, owner=owner), 1))


def test_run_that_is_missing_or_damaged_is_said_to_be() -> None:
    for data in (None, LONG.data[:10]):
        with pytest.raises(StoreCorrupt):
            lent_run(run_key(LONG), data, bytes(16))


@settings(deadline=None)
@given(_bits())
@example(EVERY_OTHER)
@example(item_bits(0, ITEMS))
def test_bits_come_back(bits: int) -> None:
    assert unpack_bits(pack_bits(bits)) == bits


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 255),
            st.integers(1, 2**41),
            st.integers(0, 2**41),
            st.integers(0, 2**62),
            st.integers(0, 9),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_sorts_as_slices_do(places: list[tuple[int, int, int, int, int]]) -> None:
    slices = [
        Slice(
            make_row(number, 10, priority=priority, enqueued_ms=enqueued_ms, due_ms=due_ms),
            1 << item,
        )
        for priority, enqueued_ms, due_ms, number, item in places
    ]
    by_key = sorted(slices, key=lambda slice_: slice_.sort_key)
    by_text = sorted(slices, key=lambda slice_: pack_entry(slice_)[:27])
    assert [slice_.sort_key for slice_ in by_text] == [slice_.sort_key for slice_ in by_key]


def test_numbers_that_are_no_tokens() -> None:
    assert {pack_token(number) for number in (-1, 0, 1 << 63, 10**30)} == {b"none"}


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(_bits(), st.lists(st.integers(1, 700), min_size=1, max_size=4))
@example(EVERY_OTHER, [1, 700, 2, 1000])
def test_script_cuts_as_slices_are_cut(bits: int, sizes: list[int]) -> None:
    async def play() -> None:
        async with fleet(1) as (_, (one,)):
            rest: Slice | None = Slice(LONG, bits)
            await one.enter("q", [Slice(LONG, bits)], PLENTY)
            for size in sizes:
                leased = await one.lease("q", size, 10**9, 30.0)
                if rest is None:
                    assert leased == []
                    return
                part, rest = rest.split(size)
                assert views(leased) == views([part])

    trio.run(play)
