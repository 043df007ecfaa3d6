"""When leases end: against a model that looks at all of them each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.workers import lease_ends
from actors.workers.lease_ends import LeaseEnds

QUEUES = ("a", "b")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "extend", "pass"]),
        st.sampled_from(QUEUES),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_late_lease_is_told_once_and_no_other(
    steps: list[tuple[str, str, int]],
) -> None:
    held: dict[tuple[str, int], int] = {}
    ends = LeaseEnds(lambda queue, token: held.get((queue, token)))
    now = 0
    for token, (what, queue, number) in enumerate(steps):
        mine = sorted(key for key in held if key[0] == queue)
        if what == "take":
            held[queue, token] = now + number
            ends.note(queue, token, now + number)
        elif what == "pass":
            now += number
        elif mine:
            key = mine[number % len(mine)]
            if what == "settle":
                del held[key]
            else:
                held[key] = now + number
                ends.note(*key, now + number)
        ends.tidy(held, len(held))
        next_ms = ends.next_ms(queue)
        first = min((end for key, end in held.items() if key[0] == queue), default=None)
        # It may be too early, of a lease that was extended, and never too late.
        assert (next_ms is None) == (first is None)
        assert next_ms is None or first is None or next_ms <= first
        late = ends.take_late(queue, now)
        expected = [token for (name, token), end in held.items() if name == queue and end <= now]
        assert sorted(late) == sorted(expected)
        for token_ in late:
            del held[queue, token_]


def test_what_was_settled_in_time_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_ends, "SPARE", 10)
    held = {("a", 0): 1000}
    ends = LeaseEnds(lambda queue, token: held.get((queue, token)))
    ends.note("a", 0, 1000)
    for token in range(1, 1000):
        ends.note("a", token, 500)
        ends.tidy(held, len(held))
        assert len(ends) <= 2 + 10 + 1
    assert ends.next_ms("a") == 1000
    assert (ends.take_late("a", 999), ends.take_late("a", 1000)) == ([], [0])
    assert (len(ends), ends.queues) == (0, [])
