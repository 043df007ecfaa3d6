"""Parts of runs: the items keep what is theirs, wherever they are taken to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import BadRun
from forebay.limits import RUN_RAW_BYTES_MAX
from forebay.run import KEYS, Run, encode_run, read_head, read_run, take_items

PAYLOADS = [b"zero", b"", b"two" * 300, b"three"]
ITEM_KEYS = [b"", b"k1", b"", b"k3"]


def sample(**fields: object) -> Run:
    given_fields = {
        "queue": "crm",
        "keys": ITEM_KEYS,
        "flow": "nightly",
        "action": "upsert",
        "priority": 9,
        "due_ms": 7_000,
        "enqueued_ms": 0,
        "attempt": 3,
        "headers": {"correlation": "c-1"},
    } | fields
    return read_run(encode_run(PAYLOADS, **given_fields))  # type: ignore[arg-type]


def test_items_keep_id_key_and_payload() -> None:
    run = sample()
    part = read_run(take_items(run, [3, 1]))
    assert part.payloads() == [b"three", b""]
    assert part.keys() == [b"k3", b"k1"]
    assert part.item_ids() == [run.item_ids()[3], run.item_ids()[1]]


def test_all_but_the_run_id_is_the_same() -> None:
    run = sample()
    head = read_run(take_items(run, [2])).head
    assert head.run_id != run.head.run_id
    for name in ("queue", "flow", "action", "priority", "due_ms", "enqueued_ms", "attempt"):
        assert getattr(head, name) == getattr(run.head, name), name
    assert head.headers() == {"correlation": "c-1"}
    assert head.count == 1


def test_a_part_of_a_part_still_has_the_first_ids() -> None:
    run = sample()
    part = read_run(take_items(run, [1, 2, 3]))
    again = read_run(take_items(part, [2, 0]))
    assert again.item_ids() == [run.item_ids()[3], run.item_ids()[1]]


def test_payloads_can_be_replaced() -> None:
    run = sample()
    part = read_run(take_items(run, [1, 2], [b"new one", b""]))
    assert part.payloads() == [b"new one", b""]
    assert part.keys() == [b"k1", b""]
    assert part.item_ids() == run.item_ids(1, 3)


def test_items_may_come_in_any_order_and_in_stretches() -> None:
    payloads = [b"%d" % index for index in range(20)]
    run = read_run(encode_run(payloads, queue="crm", keys=[b"k" + one for one in payloads]))
    chosen = [7, 8, 9, 3, 2, 2, 19, 0, 1]
    part = read_run(take_items(run, chosen))
    assert part.payloads() == [payloads[index] for index in chosen]
    assert part.keys() == [b"k" + payloads[index] for index in chosen]
    assert part.item_ids() == [run.item_ids()[index] for index in chosen]


def test_a_part_without_keys_carries_no_column_of_them() -> None:
    assert not read_head(take_items(sample(), [0, 2])).flags & KEYS
    assert not read_head(take_items(sample(keys=None), [0])).flags & KEYS


@pytest.mark.parametrize("index", [-1, 4, 4096])
def test_items_that_are_not_there_are_refused(index: int) -> None:
    with pytest.raises(IndexError, match=f"{index}"):
        take_items(sample(), [0, index])


def test_what_would_be_no_run_is_refused() -> None:
    with pytest.raises(BadRun, match="0"):
        take_items(sample(), [])
    with pytest.raises(BadRun):
        take_items(sample(), [0, 1], [b"one payload for two"])
    with pytest.raises(BadRun, match="limit"):
        take_items(sample(), [0], [bytes(RUN_RAW_BYTES_MAX)])


def test_a_run_that_cannot_be_unpacked_is_refused() -> None:
    run = sample()
    data = bytearray(run.data)
    data[run.head.head_bytes + 8 :] = bytes(len(data) - run.head.head_bytes - 8)
    with pytest.raises(BadRun):
        take_items(Run(run.head, bytes(data)), [0])


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=20)), min_size=1, max_size=20),
    st.data(),
)
def test_parts_put_together_are_the_whole(
    items: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    run = read_run(
        encode_run([item[0] for item in items], queue="q", keys=[item[1] for item in items])
    )
    order = data.draw(st.permutations(range(len(items))))
    cut = data.draw(st.integers(0, len(items)))
    parts = [read_run(take_items(run, part)) for part in (order[:cut], order[cut:]) if part]
    together = [
        entry
        for part in parts
        for entry in zip(part.item_ids(), part.payloads(), part.keys(), strict=True)
    ]
    whole = list(zip(run.item_ids(), run.payloads(), run.keys(), strict=True))
    assert together == [whole[index] for index in order]
