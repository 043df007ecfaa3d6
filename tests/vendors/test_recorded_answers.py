"""Answers of vendors, recorded from their documentation, mean what the presets say.

Each file of answers/ is for the preset of its name. An outcome is `delivered`, `dead` (refused,
permanently), `retry` (the item waits, the destination is not blamed), `destination failed` (all
items wait, and it counts against the breaker) or `split` (the request is sent again in halves).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.config.presets import SHIPPED
from actors.model.outcomes import Failure
from daemon.handlers.http.answer import SPLIT_STATUSES, Answer, AnswerReader, verdict
from tests.vendors.handlers import handler_with

ANSWERS = Path(__file__).with_name("answers")
NOW = 1_700_000_000.0
PRESETS = sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def recorded(preset: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((ANSWERS / f"{preset}.yaml").read_text())
    found: list[dict[str, Any]] = content["answers"]
    return found


def to_answer(entry: dict[str, Any]) -> Answer:
    body = json.dumps(entry["json"]) if "json" in entry else entry["text"]
    headers = {"content-type": "application/json"} | entry.get("headers", {})
    return Answer(entry["status"], headers, body.encode())


def outcomes(preset: str, answer: Answer, items: int) -> list[str | Failure]:
    """The outcome of each item: a word, or its failure."""
    handler = handler_with(preset)
    reader = AnswerReader(handler)
    if verdict(answer.status) == "delivered":
        found = reader.read(answer, [f"r-{at}" for at in range(items)])
        if isinstance(found, Failure):
            return [found] * items
        assert not found.is_suspect
        return [found.failures.get(at, "delivered") for at in range(items)]
    failure = reader.failure(answer, "https://api.example:443", NOW)
    splits = handler.on_refused == "split" and answer.status in SPLIT_STATUSES and items > 1
    return ["split" if splits else failure] * items


def word(outcome: str | Failure) -> str:
    if isinstance(outcome, str):
        return outcome
    if outcome.is_permanent:
        return "dead"
    return "destination failed" if outcome.blames_destination else "retry"


@pytest.mark.parametrize(
    "preset, entry",
    [
        pytest.param(preset, entry, id=f"{preset}: {entry['name']}")
        for preset in PRESETS
        for entry in recorded(preset)
    ],
)
def test_an_answer_means_what_is_recorded(preset: str, entry: dict[str, Any]) -> None:
    found = outcomes(preset, to_answer(entry), entry["items"])
    expected = entry["outcome"]
    if isinstance(expected, str):
        expected = [expected] * entry["items"]
    assert [word(one) for one in found] == expected
    failures = {at: one for at, one in enumerate(found) if isinstance(one, Failure)}
    for at, text in entry.get("errors", {}).items():
        assert failures[at].text == text
    if "retry_after" in entry:
        assert {one.retry_after_s for one in failures.values()} == {entry["retry_after"]}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_kind_of_answer_is_recorded(preset: str) -> None:
    names = {entry["name"] for entry in recorded(preset)}
    kinds = {"all good", "all refused", "rate limited", "expired token", "malformed"}
    if handler_with(preset).batch_items > 1:
        kinds.add("partly refused")
    assert kinds <= names


def test_there_are_no_answers_without_a_preset() -> None:
    assert {path.stem for path in ANSWERS.glob("*.yaml")} == set(PRESETS)
