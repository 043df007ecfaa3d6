"""What a reference to a secret may say, and how it is shown, merged and compared."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from actors.config.queue import QueueSettings
from actors.config.secrets import FORMS, Secret, secrets_in
from actors.config.section import merge
from actors.config.settings import Settings
from actors.model.masking import holds_mask, masked
from daemon.config.load import load
from daemon.errors import ConfigError

HUSH = "hush-hush-4711"


def http(**keys: Any) -> dict[str, Any]:
    return {"handler": {"type": "http", "url": "http://crm/", **keys}}


@pytest.mark.parametrize(
    "given",
    [
        {"file": "/etc/forebay/crm.key"},
        {"env": "CRM_KEY"},
        {"credential": "crm.key"},
    ],
)
def test_a_reference_is_shown_as_it_is_written(given: dict[str, str]) -> None:
    settings = QueueSettings.model_validate(http(headers={"X-Api-Key": given}))
    shown = settings.shown()["handler"]["headers"]
    assert shown == {"X-Api-Key": given}
    assert not holds_mask(shown)
    assert QueueSettings.model_validate(settings.model_dump()) == settings
    assert [key for key, _ in secrets_in(settings)] == ["handler.headers.X-Api-Key"]


@pytest.mark.parametrize(
    "given",
    [
        HUSH,
        7,
        None,
        [HUSH],
        {},
        {"file": HUSH, "env": "A"},
        {"fiel": HUSH},
        {"env": f"{HUSH} "},
        {"env": 5},
        {"credential": "../x"},
        {"credential": ".."},
        {"file": ""},
    ],
)
def test_anything_else_is_refused_and_not_repeated(given: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Secret.model_validate(given)
    (problem,) = caught.value.errors(include_input=False)
    assert FORMS in problem["msg"]
    assert HUSH not in problem["msg"]


def test_a_secret_that_is_written_out_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        load(sets=["cold={type: postgres, url: 'postgresql://h/d', password: hush}"])
    assert caught.value.problems == (
        "--set: cold.password: a secret is not written here: say where it is, as {file: PATH}, "
        "{env: NAME} or {credential: NAME}",
    )
    handler = "{type: http, url: 'http://h/', headers: {X-Key: {evn: X}}}"
    with pytest.raises(ConfigError) as caught:
        load(sets=[f"queues.crm.handler={handler}"])
    (line,) = caught.value.problems
    assert line.startswith("--set: queues.crm.handler.headers.X-Key: a secret is exactly one of")


@pytest.mark.parametrize(
    "store",
    ["warm={type: valkey, url: 'redis://u:p@h'", "cold={type: postgres, url: 'postgres://u:p@h/d'"],
)
def test_a_store_has_one_password(store: str) -> None:
    with pytest.raises(ConfigError, match="the url has a password: leave it out there, or here"):
        load(sets=[f"{store}, password: {{env: A}}}}"])


def test_a_password_needs_a_server() -> None:
    with pytest.raises(ConfigError, match="password is not valid for type sqlite"):
        load(sets=["cold.password={env: A}"])


def test_a_reference_replaces_another_one() -> None:
    assert merge({"token": {"file": "/a"}}, {"token": {"env": "B"}}) == {"token": {"env": "B"}}
    settings = Settings.model_validate(
        {
            "defaults": http(headers={"X-Api-Key": {"file": "/a"}}),
            "queues": {"crm": {"handler": {"headers": {"X-Api-Key": {"env": "B"}}}}},
        }
    )
    assert [secret.name for _, secret in secrets_in(settings)] == ["/a", "B"]


def test_settings_differ_when_a_secret_is_another_one_by_now() -> None:
    before, after = (
        QueueSettings.model_validate(http(headers={"X-Api-Key": {"env": "A"}})) for _ in range(2)
    )
    for settings, value in ((before, HUSH), (after, HUSH)):
        for _, secret in secrets_in(settings):
            secret.keep(value)
    assert before == after
    for _, secret in secrets_in(after):
        secret.keep("another one")
    assert before != after
    assert before.model_dump_json() == after.model_dump_json()


def test_a_value_is_in_nothing_that_shows_settings() -> None:
    settings = QueueSettings.model_validate(http(headers={"X-Api-Key": {"env": "A"}}))
    for _, secret in secrets_in(settings):
        secret.keep(HUSH)
    said = [settings, settings.shown(), settings.model_dump(), settings.model_copy()]
    assert HUSH not in repr(said) + str(said) + settings.model_dump_json()


@pytest.mark.parametrize("name", ["headers", "environment", "form"])
def test_a_secret_under_the_name_of_a_reference_is_masked(name: str) -> None:
    assert masked({name: {"credential": HUSH}}) == {name: {"credential": "***"}}
    assert HUSH not in json.dumps(masked({"webhook": {"token": HUSH}}))
