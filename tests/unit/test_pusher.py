import time
from typing import Any

import pytest

from forebay.errors import BadRun
from forebay.pusher import Pusher
from forebay.run import Run, read_run
from forebay.tally import Tally


class Kept:
    """Takes runs as a client does, and acknowledges them when asked to."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.drained = False

    def submit(self, run: bytes, *, window: int, tally: Tally) -> None:
        self.runs.append(read_run(run))
        tally.add(run, False)

    def drain(self) -> None:
        self.drained = True


def make_pusher(client: Kept, **options: Any) -> Pusher:
    defaults: dict[str, Any] = {
        "priority": 5,
        "due_ms": 0,
        "delay": 0.0,
        "flow": "",
        "action": "",
        "headers": None,
        "run_items": 1000,
        "run_bytes": 1 << 20,
        "compressed": False,
        "window": 8,
    }
    return Pusher(client, "crm", **{**defaults, **options})


def test_run_is_cut_at_its_number_of_items() -> None:
    client = Kept()
    with make_pusher(client, run_items=3) as pusher:
        pusher.send_all(map(str, range(7)))
    assert [run.payloads() for run in client.runs] == [
        [b"0", b"1", b"2"],
        [b"3", b"4", b"5"],
        [b"6"],
    ]
    assert pusher.result == (7, 3, 0)


@pytest.mark.parametrize("with_keys", [True, False])
def test_no_run_is_larger_than_its_bytes(with_keys: bool) -> None:
    client = Kept()
    items = [b"x" * (index % 97) for index in range(500)]
    with make_pusher(client, run_bytes=2000) as pusher:
        pusher.send_all(items, [b"key"] * 500 if with_keys else None)
    assert [payload for run in client.runs for payload in run.payloads()] == items
    assert max(run.head.raw_bytes for run in client.runs) <= 2000
    assert min(run.head.raw_bytes for run in client.runs[:-1]) > 1300


def test_item_larger_than_a_run_gets_a_run_of_its_own() -> None:
    client = Kept()
    with make_pusher(client, run_bytes=100) as pusher:
        pusher.send_all([b"a", b"x" * 500, b"b"])
    assert [run.head.count for run in client.runs] == [1, 1, 1]


def test_items_without_a_key_among_items_with_one_have_an_empty_one() -> None:
    client = Kept()
    with make_pusher(client) as pusher:
        pusher.send("a")
        pusher.send("b", key="k")
        pusher.send("c")
    assert client.runs[0].keys() == [b"", b"k", b""]


def test_run_without_keys_has_no_column_for_them() -> None:
    client = Kept()
    with make_pusher(client) as pusher:
        pusher.send("a")
    assert client.runs[0].head.flags == 0


def test_flush_submits_what_there_is_and_nothing_twice() -> None:
    client = Kept()
    pusher = make_pusher(client)
    pusher.flush()
    pusher.send("a")
    pusher.flush()
    pusher.flush()
    assert [run.payloads() for run in client.runs] == [[b"a"]]


def test_context_left_by_an_exception_flushes_nothing() -> None:
    client = Kept()
    pusher = make_pusher(client)
    pusher.send("a")
    with pytest.raises(KeyError), pusher:
        raise KeyError
    assert client.runs == []
    assert not client.drained


def test_keys_and_payloads_of_different_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        make_pusher(Kept()).send_all(["a", "b"], ["k"])


def test_delay_counts_from_the_moment_the_run_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_755_000_000_000_000_000)
    client = Kept()
    with make_pusher(client, delay=90.5) as pusher:
        pusher.send("a")
    assert client.runs[0].head.due_ms == 1_755_000_090_500
    assert client.runs[0].head.enqueued_ms == 1_755_000_000_000


def test_delay_and_due_time_together_are_an_error() -> None:
    with pytest.raises(ValueError, match="due time"):
        make_pusher(Kept(), delay=1.0, due_ms=1)


@pytest.mark.parametrize("run_items", [0, 4097])
def test_run_of_an_impossible_number_of_items_is_refused(run_items: int) -> None:
    with pytest.raises(BadRun):
        make_pusher(Kept(), run_items=run_items)
