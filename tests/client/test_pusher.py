import time
from typing import Any

import pytest

from forebay.errors import BadRun
from forebay.pusher import Pusher, PushOptions
from forebay.run import Run, read_run
from forebay.tally import Tally


class Kept:
    """Takes runs as an exchange does, and acknowledges them at once."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.drained = False

    def push(self, run: bytes, window: int, tally: Tally) -> None:
        self.runs.append(read_run(run))
        tally.add(run, False)

    def drain(self) -> None:
        self.drained = True


def make_pusher(exchange: Kept, **options: Any) -> Pusher:
    return Pusher(exchange, "crm", PushOptions(**{"compressed": False, **options}), Tally())


def test_run_is_cut_at_its_number_of_items() -> None:
    exchange = Kept()
    with make_pusher(exchange, run_items=3) as pusher:
        pusher.send_all(map(str, range(7)))
    assert [run.payloads() for run in exchange.runs] == [
        [b"0", b"1", b"2"],
        [b"3", b"4", b"5"],
        [b"6"],
    ]
    assert pusher.result == (7, 3, 0)


@pytest.mark.parametrize("with_keys", [True, False])
def test_no_run_is_larger_than_its_bytes(with_keys: bool) -> None:
    exchange = Kept()
    items = [b"x" * (index % 97) for index in range(500)]
    with make_pusher(exchange, run_bytes=2000) as pusher:
        pusher.send_all(items, [b"key"] * 500 if with_keys else None)
    assert [payload for run in exchange.runs for payload in run.payloads()] == items
    assert max(run.head.raw_bytes for run in exchange.runs) <= 2000
    assert min(run.head.raw_bytes for run in exchange.runs[:-1]) > 1300


def test_item_larger_than_a_run_gets_a_run_of_its_own() -> None:
    exchange = Kept()
    with make_pusher(exchange, run_bytes=100) as pusher:
        pusher.send_all([b"a", b"x" * 500, b"b"])
    assert [run.head.count for run in exchange.runs] == [1, 1, 1]


def test_items_without_a_key_among_items_with_one_have_an_empty_one() -> None:
    exchange = Kept()
    with make_pusher(exchange) as pusher:
        pusher.send("a")
        pusher.send("b", key="k")
        pusher.send("c")
    assert exchange.runs[0].keys() == [b"", b"k", b""]


def test_run_without_keys_has_no_column_for_them() -> None:
    exchange = Kept()
    with make_pusher(exchange) as pusher:
        pusher.send("a")
    assert exchange.runs[0].head.flags == 0


def test_flush_submits_what_there_is_and_nothing_twice() -> None:
    exchange = Kept()
    pusher = make_pusher(exchange)
    pusher.flush()
    pusher.send("a")
    pusher.flush()
    pusher.flush()
    assert [run.payloads() for run in exchange.runs] == [[b"a"]]


def test_context_left_by_an_exception_flushes_nothing() -> None:
    exchange = Kept()
    pusher = make_pusher(exchange)
    pusher.send("a")
    with pytest.raises(KeyError), pusher:
        raise KeyError
    assert exchange.runs == []
    assert not exchange.drained


def test_keys_and_payloads_of_different_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        make_pusher(Kept()).send_all(["a", "b"], ["k"])


def test_delay_counts_from_the_moment_the_run_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_755_000_000_000_000_000)
    exchange = Kept()
    with make_pusher(exchange, delay=90.5) as pusher:
        pusher.send("a")
    assert exchange.runs[0].head.due_ms == 1_755_000_090_500
    assert exchange.runs[0].head.enqueued_ms == 1_755_000_000_000


def test_delay_and_due_time_together_are_an_error() -> None:
    with pytest.raises(ValueError, match="due time"):
        make_pusher(Kept(), delay=1.0, due_ms=1)


@pytest.mark.parametrize("run_items", [0, 4097])
def test_run_of_an_impossible_number_of_items_is_refused(run_items: int) -> None:
    with pytest.raises(BadRun):
        make_pusher(Kept(), run_items=run_items)
