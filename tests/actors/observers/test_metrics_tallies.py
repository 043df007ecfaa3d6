"""What is counted of deliveries, by queue, and what kinds of errors there are."""

import pytest

from actors.model.error_types import ERROR_TYPES, error_type
from actors.model.outcomes import Conclusion
from actors.model.slices import InJournal, ItemError, LentRun, Slice, first_item_id, item_bits
from actors.observers import tallies as tallies_module
from actors.observers.batch import Batch
from actors.observers.tallies import OTHER, Tallies
from actors.ports.tiers import Leased
from actors.workers.sending import InHand
from forebay.ids import pack_item_id
from forebay.run import encode_run, read_head

NOW_MS = 1_700_000_000_000


def a_slice(items: int = 4, attempt: int = 0, due_ms: int = 0, enqueued_ms: int = NOW_MS) -> Slice:
    data = encode_run([b"x"] * items, queue="q", enqueued_ms=enqueued_ms)
    run = LentRun(read_head(data), data, InJournal(1, 2))
    return Slice(run, item_bits(0, items), attempt, due_ms)


def leased(slice_: Slice) -> Leased:
    return Leased(7, slice_, NOW_MS + 1000)


def failed(slice_: Slice, bits: int, text: str, due_ms: int = 0) -> Slice:
    attempt = slice_.attempt + 1
    return Slice(slice_.run, bits, attempt, due_ms, (ItemError(attempt, NOW_MS, text),))


class TestTallies:
    def test_latency_is_counted_from_when_an_item_was_ready(self) -> None:
        tallies = Tallies()
        tallies.leased("q", [leased(a_slice(3, enqueued_ms=NOW_MS - 4000))], NOW_MS)
        old = NOW_MS - 9000
        tallies.leased("q", [leased(a_slice(2, due_ms=NOW_MS - 1000, enqueued_ms=old))], NOW_MS)
        tallies.leased("q", [leased(a_slice(1, enqueued_ms=old))], NOW_MS)
        found = tallies.of("q").dequeue.frozen()
        assert (found.items, found.sum_s) == (6, 3 * 4.0 + 2 * 1.0 + 9.0)

    def test_first_failures_are_retried_and_no_retry_failures(self) -> None:
        tallies, one = Tallies(), a_slice(4)
        again = failed(one, 0b0011, "503 from http://crm: no", NOW_MS + 5000)
        tallies.settled(Batch("q", [(leased(one), Conclusion(0b1100, (again,)))], [True], NOW_MS))
        tally = tallies.of("q")
        assert tally.retried == {"server_error": 2}
        assert (tally.backoff_slices, tally.backoff_s) == (1, 5.0)
        assert (tally.retry_successes, tally.retry_failures, tally.died) == (0, {}, {})

    def test_later_attempts_succeed_fail_or_die(self) -> None:
        tallies, one = Tallies(), a_slice(4, attempt=2)
        again = failed(one, 0b0001, "429 from http://crm: slow down")
        dead = failed(one, 0b0010, "400 from http://crm: bad")
        conclusion = Conclusion(0b1100, (again,), (dead,))
        tallies.settled(Batch("q", [(leased(one), conclusion)], [True], NOW_MS))
        tally = tallies.of("q")
        assert tally.retry_successes == 2
        assert tally.retry_failures == {"rate_limited": 1, "client_error": 1}
        assert tally.retried == {"rate_limited": 1}
        assert tally.died == {"client_error": 1}

    def test_what_was_given_back_untried_is_no_failure(self) -> None:
        tallies, one = Tallies(), a_slice(4, attempt=1)
        tallies.settled(Batch("q", [(leased(one), Conclusion(0, (one,)))], [True], NOW_MS))
        assert not tallies.of("q").retried
        assert not tallies.of("q").retry_failures

    def test_of_a_lost_lease_nothing_but_that_is_counted(self) -> None:
        tallies, one = Tallies(), a_slice(4, attempt=1)
        tallies.settled(Batch("q", [(leased(one), Conclusion(0b1111))], [False], NOW_MS))
        assert (tallies.of("q").lost_leases, tallies.of("q").retry_successes) == (1, 0)

    def test_queues_past_the_bound_share_a_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tallies_module, "QUEUES_MAX", 2)
        tallies = Tallies()
        for queue in ("a", "b", "c", "d", "a"):
            tallies.sent(queue, 1, 0.1, is_failed=False)
        assert {queue: tally.batches for queue, tally in tallies.queues.items()} == {
            "a": 2,
            "b": 1,
            OTHER: 2,
        }


@pytest.mark.parametrize(
    "text, kind",
    [
        ("503 from http://crm.example:80: overloaded", "server_error"),
        ("504 from http://crm.example:80", "timeout"),
        ("404 from http://crm.example:80: no such", "client_error"),
        ("429 from http://crm.example:80", "rate_limited"),
        ("302 from http://crm.example:80: redirects to /x", "redirect"),
        ("crm.example:80: the answer took longer than 10s", "timeout"),
        ("the function was not done after 30s", "timeout"),
        ("/var/out: not written after 30s", "timeout"),
        ("crm.example:80 closed the connection", "connection"),
        ("crm.example:80: connection refused", "connection"),
        ("sendmail: exit code 3", "exit"),
        ("the process died over it: killed by signal 9", "exit"),
        ("ValueError: no such customer", "exception"),
        ("cannot be unpacked: the checksum is wrong", "unpacking"),
        ("no thanks", "other"),
        ("", "other"),
    ],
)
def test_error_types(text: str, kind: str) -> None:
    assert error_type(text) == kind
    assert kind in ERROR_TYPES


class TestInHand:
    def test_batches_have_places_that_are_used_again(self) -> None:
        hands = InHand()
        first = hands.take([leased(a_slice(2)), leased(a_slice(3))], NOW_MS)
        second = hands.take([leased(a_slice(1))], NOW_MS + 5)
        hands.leave(first)
        third = hands.take([leased(a_slice(9))], NOW_MS + 7)
        assert {first, second, third} == {1, 2}
        tasks = list(hands.tasks("q", 50.0))
        assert sorted((task.items, task.began_ms, task.lease_ms) for task in tasks) == [
            (1, NOW_MS + 5, 50_000),
            (9, NOW_MS + 7, 50_000),
        ]

    def test_places_never_clash_whatever_the_order(self) -> None:
        hands = InHand()
        taken = [hands.take([], NOW_MS) for _ in range(6)]
        assert sorted(taken) == [1, 2, 3, 4, 5, 6]
        for place in taken[::2]:
            hands.leave(place)
        taken = taken[1::2] + [hands.take([], NOW_MS) for _ in range(3)]
        assert len(set(taken)) == len(hands) == 6
        for place in taken:
            hands.leave(place)
        assert len(hands) == 0

    def test_the_first_item_is_named_also_where_a_run_lists_its_ids(self) -> None:
        whole = a_slice(4)
        run_id = whole.run.head.run_id
        assert first_item_id(Slice(whole.run, 0b1100)).endswith("-2")
        ids = [pack_item_id(run_id, 31), pack_item_id(run_id, 57)]
        data = encode_run([b"a", b"b"], queue="q", item_ids=ids)
        listed = LentRun(read_head(data), data, InJournal(1, 2))
        assert first_item_id(Slice(listed, 0b10)).endswith("-57")
