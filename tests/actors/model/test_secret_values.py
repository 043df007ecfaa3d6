"""Known secrets are masked in any text, in the forms in which they are sent and repeated."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from actors.model.outcomes import Failure
from actors.model.secret_values import SECRET_VALUES, TOKENS_MAX, SecretValues

HUSH = 'hush/"4711" + more'


@pytest.mark.parametrize(
    "form", [HUSH, quote(HUSH, safe=""), quote_plus(HUSH), json.dumps(HUSH)[1:-1]]
)
def test_every_form_is_masked(form: str) -> None:
    values = SecretValues()
    values.add(HUSH)
    assert values.masked(f"a {form} b {form}") == "a *** b ***"


def test_a_secret_that_is_part_of_another_one_leaves_nothing_of_it() -> None:
    values = SecretValues()
    values.add("hush-hush")
    values.add("more-hush-hush-more")
    assert values.masked("more-hush-hush-more") == "***"


def test_short_secrets_would_mask_ordinary_text() -> None:
    values = SecretValues()
    values.add("error")
    assert values.masked("an error") == "an error"


def test_text_without_secrets_is_the_same_object() -> None:
    values = SecretValues()
    text = "nothing to see"
    assert values.masked(text) is text
    values.add(HUSH)
    assert values.masked(text) is text


def test_old_tokens_are_forgotten_and_secrets_are_not() -> None:
    values = SecretValues()
    values.add("of-the-configuration")
    for number in range(TOKENS_MAX + 1):
        values.add_token(f"token-{number:08}")
    assert values.masked("token-00000000") == "token-00000000"
    assert values.masked("token-00000001") == "***"
    assert values.masked(f"token-{TOKENS_MAX:08}") == "***"
    assert values.masked("of-the-configuration") == "***"


def test_a_failure_shows_no_known_secret() -> None:
    pair = base64.b64encode(b"me:known-to-failures").decode()
    SECRET_VALUES.add("known-to-failures")
    SECRET_VALUES.add(pair)
    text = f"401 for known-to-failures ({pair}) at https://u:pw@crm/?x=known-to-failures"
    assert Failure(text).text == "401 for *** (***) at https://u:***@crm/?x=***"
