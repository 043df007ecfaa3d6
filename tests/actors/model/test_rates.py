"""How rates are written, and what they allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.config.queue import QueueSettings
from actors.model.rates import NO_LIMIT, Rate, format_rate, parse_rate


@pytest.mark.parametrize(
    "written, rate, normal",
    [
        (0, NO_LIMIT, 0),
        (0.0, NO_LIMIT, 0),
        (100, Rate(100), 100),
        ("100", Rate(100), 100),
        (0.5, Rate(0.5), 0.5),
        ("100/s", Rate(100), 100),
        ("100 items/s", Rate(100), 100),
        ("100/10s", Rate(100, 10), "100/10s"),
        (" 100 / 10 s ", Rate(100, 10), "100/10s"),
        ("5 requests/s", Rate(5, 1, "requests"), "5 requests/s"),
        ("1 request/h", Rate(1, 3600, "requests"), "1 request/h"),
        ("5requests/10s", Rate(5, 10, "requests"), "5 requests/10s"),
        ("100000/d", Rate(100_000, 86_400), "100000/d"),
        ("600/min", Rate(600, 60), "600/min"),
        ("600/m", Rate(600, 60), "600/min"),
        ("1000/15min", Rate(1000, 900), "1000/15m"),
        ("10/100ms", Rate(10, 0.1), "10/100ms"),
        ("20/s burst 100", Rate(20, 1, "items", 100), "20/s burst 100"),
        ("20 requests/min burst 5", Rate(20, 60, "requests", 5), "20 requests/min burst 5"),
        ("1/365d", Rate(1, 365 * 86_400), "1/365d"),
        (10**9, Rate(1e9), 10**9),
    ],
)
def test_a_rate_is_read_and_shown_in_its_normal_form(
    written: object, rate: Rate, normal: object
) -> None:
    settings = QueueSettings.model_validate({"rate_limit": written})
    assert settings.rate_limit == rate
    for mode in ("json", "python"):
        shown = settings.model_dump(mode=mode)["rate_limit"]
        assert (shown, type(shown)) == (normal, type(normal))
    assert parse_rate(normal) == rate


@given(
    st.floats(0.001, 1e6),
    st.sampled_from([0.001, 0.5, 1, 10, 11, 60, 90.5, 3600, 86_400, 100_000.25]),
    st.sampled_from(["items", "requests"]),
    st.one_of(st.none(), st.integers(1, 10)),
)
def test_every_rate_is_the_same_after_it_was_shown(
    count: float, period_s: float, unit: str, burst: int | None
) -> None:
    rate = Rate(count, period_s, "requests" if unit == "requests" else "items", burst)
    try:
        parse_rate(str(rate))
    except ValueError:
        return  # It is outside the limits, or its burst is more than its quota.
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize(
    "written",
    [
        *(
            "fast",
            "",
            "5 apples/s",
            "5 requests",
            "100 burst 5",
            "100/10",
            "100/",
            "/s",
            "-1/s",
            -1,
        ),
        *(
            "1e3/s",
            "100/10x",
            "100 per second",
            "1//s",
            "1/s burst",
            "1/s burst -1",
            "1/s burst 1.5",
        ),
        *(True, None, [100], {"rate": 100}, float("nan"), float("inf")),
    ],
)
def test_bad_input_is_refused_with_the_forms(written: object) -> None:
    assert message(written).endswith(
        "is not a rate: write 100 (items per second), 100/10s, 5 requests/s, 100000/d or "
        "20/s burst 100; 0: no limit"
    )


@pytest.mark.parametrize(
    "written, problem",
    [
        ("0/s", "'0/s' lets nothing through: write 0 for no limit"),
        ("0 requests/d", "'0 requests/d' lets nothing through: write 0 for no limit"),
        (10**10, "'10000000000' is outside 1/365d..1000000000/s"),
        ("0.5/365d", "'0.5/365d' is outside 1/365d..1000000000/s"),
        ("1000/366d", "'1000/366d': a period is 1ms..365d"),
        ("1/0s", "'1/0s': a period is 1ms..365d"),
        ("1/1us", "'1/1us': a period is 1ms..365d"),
        ("1/s burst 0", "'1/s burst 0': a burst is 1..1000000000"),
        ("1/s burst 9999999999", "'1/s burst 9999999999': a burst is 1..1000000000"),
        (
            "100/min burst 101",
            "'100/min burst 101': the burst of a quota (a period above 10s) is at most the quota",
        ),
    ],
)
def test_a_rate_outside_its_limits_is_refused(written: object, problem: str) -> None:
    assert message(written) == problem


def message(written: object) -> str:
    with pytest.raises(ValidationError) as refused:
        QueueSettings.model_validate({"rate_limit": written})
    return str(refused.value.errors(include_input=False)[0]["msg"]).removeprefix("Value error, ")


@pytest.mark.parametrize(
    "written, at_once, per_period",
    [
        (100, 100, 100),
        (0.5, 1, 0.5),
        ("100/10s", 100, 100),
        ("1/10s", 1, 1),
        ("20/s burst 100", 100, 20),
        ("20/s burst 1", 1, 20),
        # Quotas: what goes at once and what comes in the period make the quota together.
        ("600/min", 10, 591),
        ("100000/d", 1, 100_000),
        ("5/min", 1, 5),
        ("0.5/min", 1, 0.5),
        ("100/min burst 40", 40, 61),
        ("100/min burst 100", 100, 1),
    ],
)
def test_what_goes_at_once_and_what_comes_in_a_period(
    written: object, at_once: float, per_period: float
) -> None:
    rate = parse_rate(written)
    assert rate.at_once == at_once
    assert rate.refill * rate.period_s == pytest.approx(per_period)
