"""Regular expressions of operators: bounded, and refused where they cannot be matched."""

import pytest
from pydantic import ValidationError

from actors.config.queue import RETRY_RULES_MAX, QueueSettings
from actors.model.patterns import PROGRAM_SIZE_MAX, SEARCHED_CHARS_MAX, check_pattern, finds


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(?:a?){100}a{100}$", "(.*a){20}$"])
def test_patterns_that_backtrack_for_ever_elsewhere_are_matched(pattern: str) -> None:
    """With `re` most of these would not end within the life of the machine."""
    check_pattern(pattern)
    assert not finds(pattern, "a" * 90 + "!")


@pytest.mark.parametrize(
    "pattern, why",
    [
        (r"(a)\1", r"backreferences are not supported (\1)"),
        ("(?P<n>a)(?P=n)", "backreferences are not supported"),
        ("(?=a)", "look-ahead is not supported ((?=)"),
        ("(?!a)", "look-ahead is not supported"),
        ("(?<=a)b", "look-behind is not supported"),
        ("(?<!a)b", "look-behind is not supported"),
        ("(?>a)b", "atomic groups are not supported"),
        ("a++b", "possessive quantifiers are not supported"),
        (r"a\Z", r"use \z"),
        ("(", "missing )"),
        (".{0,500}", f"at most {PROGRAM_SIZE_MAX}"),
        ("((a{50}){50}){50}", "invalid repetition size"),
        ("x" * 1001, "at most 1000 characters, not 1001"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_pattern_that_cannot_be_matched_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        QueueSettings.model_validate({"retry_rules": [{"error": pattern}]})
    assert why in str(caught.value)


def test_a_pattern_is_searched_anywhere_and_case_matters() -> None:
    assert finds("timed? ?out", "the request timed out")
    assert not finds("Timed out", "the request timed out")
    assert finds("(?i)Timed out", "the request timed out")
    assert finds(r"\p{L}{4} so", "über so")
    assert not finds(r"\d", "٣")
    assert not finds("a$", "a\n")


def test_only_the_beginning_of_a_text_is_searched() -> None:
    assert finds("end", "x" * (SEARCHED_CHARS_MAX - 3) + "end")
    assert not finds("end", "x" * (SEARCHED_CHARS_MAX - 2) + "end")


def test_text_that_is_not_unicode_is_searched_all_the_same() -> None:
    assert finds("bad", "\ud800 bad")


def test_a_queue_has_a_bounded_number_of_rules() -> None:
    rules = [{"error": "x"}] * RETRY_RULES_MAX
    assert len(QueueSettings.model_validate({"retry_rules": rules}).retry_rules) == RETRY_RULES_MAX
    with pytest.raises(ValidationError):
        QueueSettings.model_validate({"retry_rules": [*rules, {"error": "y"}]})
