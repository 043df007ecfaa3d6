"""What `forebay top` makes of what the daemon says: rows, order, columns, forecasts."""

from typing import Any

import pytest

from daemon.cli.stats.sampling import Rates, Recent, Sample, rates_between
from daemon.cli.top.view import (
    COLUMNS,
    QueueRow,
    backlog_text,
    bar_text,
    breakers_text,
    choose_columns,
    choose_rows,
    column_of,
    count_text,
    make_rows,
    size_text,
    span_text,
    spool_text,
    stores_text,
    totals_text,
    workers_text,
)

BOOKS = dict.fromkeys(
    (
        "accepted",
        "delivered",
        "dead",
        "dropped",
        "lost",
        "staged",
        "held",
        "warm",
        "cold",
        "running",
    ),
    0,
)


def sample(at_s: float = 100.0, /, spool: int = 0, **queues: dict[str, int]) -> Sample:
    whole = {name: sum(queue.get(name, 0) for queue in queues.values()) for name in BOOKS}
    report: dict[str, Any] = {
        "daemon": whole,
        "queues": {name: BOOKS | books for name, books in queues.items()},
        "spool": {
            "bytes": spool,
            "max_bytes": 2**30,
            "free_bytes": 2**40,
            "min_free_bytes": 2**28,
        },
    }
    return Sample(at_s, round(at_s * 1000), report, {}, [])


def row(name: str = "crm", **more: Any) -> QueueRow:
    values: dict[str, Any] = {
        "state": "running",
        "tier": "warm",
        "handler": "http",
        "destination": "",
        "breaker": "",
        "in_s": 0.0,
        "out_s": 0.0,
        "oldest_s": None,
        "workers": None,
        "busy": 0,
        **dict.fromkeys(("held", "warm", "cold", "running", "scheduled", "spooled", "dead"), 0),
    }
    return QueueRow(name, **(values | more))


def test_rates_are_differences_over_time() -> None:
    before = sample(100.0, crm={"accepted": 100, "delivered": 50, "dead": 9})
    after = sample(102.0, crm={"accepted": 300, "delivered": 60, "dead": 3}, new={"accepted": 8})
    rates = rates_between(before, after)
    # Dead letters that were retried are not deaths backwards, and a new queue began at 0.
    assert rates["crm"] == Rates(100.0, 5.0, 0.0)
    assert rates["new"] == Rates(4.0, 0.0, 0.0)
    assert rates[""] == Rates(104.0, 5.0, 0.0)
    assert rates_between(after, after) == {}


def test_rates_are_of_the_last_seconds_and_begin_anew_when_the_daemon_was_away() -> None:
    recent = Recent(window_s=5)
    assert recent.rates() == {}
    for second in range(20):
        recent.add(sample(second, crm={"accepted": 10 * second if second < 10 else 100}))
    assert recent.rates()["crm"].accepted == 0
    first, last = recent.span or (None, None)
    assert first is not None
    assert last is not None
    assert (first.at_s, last.at_s) == (14, 19)
    # A daemon that answers late was there.
    recent.add(sample(60, crm={"accepted": 110}))
    assert recent.rates()["crm"].accepted == 10 / 41
    recent.forget()
    recent.add(sample(61, crm={"accepted": 9000}))
    assert recent.rates() == {}


def test_a_row_is_put_together_from_all_that_is_known() -> None:
    found = sample(200.0, crm={"held": 7, "warm": 5, "cold": 2, "dead": 1})
    report = {
        **found.report,
        "workers": {"crm": {"destination": "https://crm.example", "count": 4, "busy": 3}},
        "breakers": {"https://crm.example": {"state": "half_open"}},
        "tiers": {"crm": "cold"},
        "oldest_ms": {"crm": 80_000},
    }
    queues: dict[str, dict[str, Any]] = {
        "crm": {"is_paused": True, "settings": {"handler": {"type": "http"}}},
        "mail": {"settings": {"handler": {"type": "pull"}}},
    }
    full = Sample(found.at_s, found.at_ms, report, queues, [])
    crm, mail = make_rows(full, {"crm": Rates(1.0, 2.0, 0.0)})
    assert (crm.state, crm.tier, crm.handler, crm.breaker) == (
        "paused",
        "cold",
        "http",
        "half_open",
    )
    assert (crm.held, crm.warm, crm.cold, crm.dead) == (7, 5, 2, 1)
    assert (crm.in_s, crm.out_s, crm.oldest_s, crm.is_in_trouble) == (1.0, 2.0, 120.0, True)
    assert (workers_text(crm), workers_text(mail)) == ("3/4", "pull")
    # A queue that holds nothing is shown too, and what is not known of it is not made up.
    assert (mail.name, mail.state, mail.held, mail.in_s, mail.oldest_s) == (
        *("mail", "running", 0),
        *(None, None),
    )


@pytest.mark.parametrize(
    "text,names",
    [
        ("", ["a", "b", "c"]),
        ("B", ["b"]),
        ("pause", ["c"]),
        (" crm.example ", ["a"]),
        ("open", ["a"]),
        ("nothing", []),
    ],
)
def test_a_filter_looks_at_all_that_names_a_queue(text: str, names: list[str]) -> None:
    rows = [
        row("a", destination="https://crm.example", breaker="open"),
        row("b"),
        row("c", state="paused"),
    ]
    found = choose_rows(rows, text, column_of("queue"), is_upward=False)
    assert [at.name for at in found] == names


def test_numbers_are_sorted_from_the_top_and_names_from_a() -> None:
    rows = [row("a", held=1), row("b", held=9), row("c", held=1)]

    def names(key: str, is_upward: bool = False) -> list[str]:
        found = choose_rows(rows, "", column_of(key), is_upward=is_upward)
        return [at.name for at in found]

    assert names("held") == ["b", "a", "c"]
    assert names("held", is_upward=True) == ["a", "c", "b"]
    assert names("queue") == ["a", "b", "c"]
    assert names("queue", is_upward=True) == ["c", "b", "a"]


def test_what_matters_most_is_shown_where_there_is_little_room() -> None:
    rows = [row("customer-updates", held=1_000_000)]
    keys = [column.key for column in choose_columns(rows, 50)]
    assert keys == ["queue", "state", "out_s", "held"]
    assert choose_columns(rows, 1) == [column_of("queue")]
    assert choose_columns(rows, 500) == list(COLUMNS)
    assert len({column.matters for column in COLUMNS}) == len(COLUMNS)


def test_the_spool_says_where_it_goes() -> None:
    found = sample(spool=2**29)
    text = "████···· 50%  512.0 MiB of 1.0 GiB  {}disk: 1.0 TiB free"
    assert spool_text(found, 8) == text.format("")
    for direction, seconds, words in (
        ("full", 960.0, "full in 16 min  "),
        ("empty", 8.0, "empty in 8 s  "),
        ("steady", None, ""),
    ):
        report = {**found.report, "forecast": {"spool": direction, "seconds": seconds}}
        shown = spool_text(Sample(0.0, 0, report, {}, []), 8)
        assert shown == text.format(words)


def test_stores_that_cannot_be_used_are_named() -> None:
    def shown(**stores: bool) -> str:
        return stores_text(Sample(0.0, 0, {"stores": stores}, {}, []))

    assert shown() == "–"
    assert shown(cold=True, disk=True) == "cold, disk available"
    assert shown(cold=False, disk=False, warm=True) == "cold is unavailable, the disk is full"


def test_a_backlog_shrinks_grows_or_rests() -> None:
    assert backlog_text(row(held=600, in_s=0.0, out_s=10.0)) == "empty in 60 s"
    assert backlog_text(row(held=600, in_s=30.0, out_s=10.0)) == "grows by 20/s"
    assert backlog_text(row(held=600)) == ""
    assert backlog_text(row(held=0, out_s=10.0)) == ""
    assert backlog_text(row(held=600, in_s=None)) == ""


def test_breakers_are_said_only_as_far_as_they_matter() -> None:
    def breaker(name: str, state: str, *, forced: bool = False) -> dict[str, Any]:
        until = 130_000 if state == "open" and not forced else None
        return {"destination": name, "state": state, "forced": forced, "open_until_ms": until}

    def text(*breakers: dict[str, Any]) -> str:
        return breakers_text(Sample(0.0, 100_000, {}, {}, breakers))

    assert text() == "none yet"
    assert text(breaker("a", "closed"), breaker("b", "closed")) == "all 2 closed"
    assert text(breaker("a", "half_open"), breaker("b", "closed"), breaker("c", "open")) == (
        "c open, tried again in 30 s; a half open"
    )
    assert text(breaker("a", "open", forced=True)) == "a open, by an operator"
    assert text(*(breaker(str(at), "open") for at in range(5))).endswith("; and 2 more")


def test_totals_name_what_is_rare_only_where_it_is() -> None:
    text = totals_text(sample(crm={"accepted": 12, "dropped": 3}), {})
    assert text == "accepted 12 (…/s)   delivered 0 (…/s)   held 0   dead 0   dropped 3"


@pytest.mark.parametrize(
    "seconds,text",
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h"), (172800, "2 d"), (None, "–")],
)
def test_spans(seconds: float | None, text: str) -> None:
    assert span_text(seconds) == text


def test_figures_are_as_short_as_they_can_be_read() -> None:
    assert (count_text(9_999_999), count_text(12_345_678)) == ("9,999,999", "12.3 M")
    assert (size_text(12), size_text(2048), size_text(3 * 2**30)) == ("12 B", "2 KiB", "3.0 GiB")
    assert size_text(5 * 2**40) == "5.0 TiB"
    assert (bar_text(0.0, 4), bar_text(0.3, 4), bar_text(2.0, 4)) == ("····", "█▎··", "████")
