import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.config.queue import QueueSettings
from actors.model.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    "written,size",
    [
        (0, 0),
        (4096, 4096),
        (1e6, 1_000_000),
        ("4096", 4096),
        ("512Mi", 512 * 2**20),
        ("64KiB", 65536),
        ("1Gi", 2**30),
        ("1.5Gi", 3 * 2**29),
        ("2ti", 2**41),
        ("10MB", 10_000_000),
        ("10M", 10_000_000),
        ("7k", 7000),
        ("100 B", 100),
        (" 1 GiB ", 2**30),
    ],
)
def test_sizes_are_read_as_people_write_them(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    ["", "Mi", "-1", "5 apples", "1,5Gi", "1Mi2", "0x10", "½Mi", True, None, [1], float("nan")],
)
def test_what_is_no_size_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="is not a size: write bytes or a unit, as 512Mi or 10MB"):
        parse_size(written)


@pytest.mark.parametrize("written", ["1.5", "0.3Ki", 2.5])
def test_a_size_is_whole_bytes(written: object) -> None:
    with pytest.raises(ValueError, match="not a whole number of bytes"):
        parse_size(written)


@pytest.mark.parametrize(
    "size,text",
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (64 * 2**20, "64Mi"),
        (10**7, "10MB"),
        (1025, "1025"),
    ],
)
def test_sizes_are_shown_short(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(min_value=0, max_value=2**63))
def test_a_shown_size_is_the_same_size(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    "written,seconds",
    [
        (0, 0),
        (30, 30),
        (0.25, 0.25),
        ("30", 30),
        ("1.5", 1.5),
        ("30s", 30),
        ("250ms", 0.25),
        ("15us", 0.000015),
        ("5m", 300),
        ("24h", 86400),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("0.1s", 0.1),
    ],
)
def test_durations_are_read_as_people_write_them(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", "s", "-1s", "5 minutes", "30S", "1m 5", "1:30", "inf", float("inf"), True, None, {}],
)
def test_what_is_no_duration_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration: write seconds or a unit, as 30s or"):
        parse_duration(written)


@pytest.mark.parametrize(
    "seconds,text",
    [
        (0, "0s"),
        (1.0, "1s"),
        (90, "90s"),
        (300, "5m"),
        (86400, "1d"),
        (0.25, "250ms"),
        (1e-6, "1us"),
    ],
)
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e12, allow_subnormal=False))
def test_a_shown_duration_is_the_same_duration(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    "written",
    [
        1e28,
        1e308,
        10**4000,
        "9" * 100,
        "9" * 1_000_000,
        "1e5",
        "9" * 1_000_000 + "d",
        "1d" * 500_000,
        "999999999999999d",
        "0." + "0" * 1_000_000 + "1s",
    ],
)
def test_a_duration_out_of_all_bounds_is_refused_in_one_short_line(written: object) -> None:
    with pytest.raises(ValueError, match=r"is too long: a duration is at most|is not a duration"):
        parse_duration(written)
    assert len(message(written)) < 200


@pytest.mark.parametrize(
    "written", [1e28, 1e308, 10**4000, "9" * 100, "9" * 1_000_000, "9" * 1_000_000 + "Ti", "9e9"]
)
def test_a_size_out_of_all_bounds_is_refused_in_one_short_line(written: object) -> None:
    with pytest.raises(ValueError, match=r"is too large: a size is at most|is not a size"):
        parse_size(written)


def message(written: object) -> str:
    with pytest.raises(ValidationError) as refused:
        QueueSettings.model_validate({"lease_time": written})
    return str(refused.value.errors(include_input=False)[0]["msg"])


@pytest.mark.parametrize(
    "keys",
    [
        {"lease_time": 1e28},
        {"warm_max_bytes": "9" * 1_000_000},
        {"max_retries": 10**4000},
        {"rate_limit": 10**400},
        {"rate_limit": float("inf")},
        {"rate_limit": float("nan")},
        {"rate_limit": True},
        {"rate_limit": "fast"},
        {"rate_limit": "9" * 1_000_000 + "/s"},
        {"is_active": 0},
        {"is_active": "false"},
        {"backoff": {"enabled": 1}},
        {"backoff": {"multiplier": True}},
        {"workers": {"count": True}},
    ],
)
def test_settings_take_neither_absurd_values_nor_lookalikes(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        QueueSettings.model_validate(keys)
    assert all(len(str(error["msg"])) < 200 for error in refused.value.errors())
