"""What answers mean: statuses, Retry-After, words, and results for single items."""

import json
import re
from typing import Any, ClassVar

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.config.http import HttpHandler
from actors.model.outcomes import Failure
from daemon.handlers.http.answer import (
    Answer,
    AnswerReader,
    Understood,
    _getter,
    failure_of,
    retry_after_s,
    text_of,
    verdict,
)

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
IDS = ["r-0", "r-1", "r-2"]


def read(said: Answer, ids: list[str] = IDS, **settings: Any) -> Understood | Failure:
    handler = HttpHandler.model_validate({"url": "http://crm:80/", **settings})
    return AnswerReader(handler).read(said, ids)


def item_failures(said: Answer, ids: list[str] = IDS, **settings: Any) -> dict[int, Failure]:
    found = read(said, ids, **settings)
    assert isinstance(found, Understood), found
    return dict(found.failures)


def failed(answer: Answer) -> Failure:
    return failure_of(answer, "http://crm:80", NOW)


def results(content: Any, ids: list[str] = IDS) -> dict[int, tuple[bool, int | None, str]]:
    found = item_failures(Answer(200, {}, json.dumps(content).encode()), ids)
    return {at: (one.is_permanent, one.status, one.text) for at, one in found.items()}


@pytest.mark.parametrize("status", [200, 201, 202, 204, 207, 299])
def test_2xx_is_delivered(status: int) -> None:
    assert verdict(status) == "delivered"


@pytest.mark.parametrize("status", [401, 407, 408, 425, 429, 500, 502, 503, 504, 599, 999])
def test_what_may_pass_is_tried_again_and_blames_the_destination(status: int) -> None:
    failure = failed(Answer(status))
    assert verdict(status) == "retry"
    assert (failure.is_permanent, failure.blames_destination) == (False, True)
    assert failure.status == status


@pytest.mark.parametrize("status", [300, 301, 304, 308, 400, 403, 404, 409, 410, 413, 422])
def test_what_was_refused_is_permanent_and_blames_nobody(status: int) -> None:
    failure = failed(Answer(status))
    assert (failure.is_permanent, failure.blames_destination) == (True, False)
    assert failure.status == status


@pytest.mark.parametrize(
    "status, reason",
    [(400, "business"), (413, "business"), (422, "business"), (401, "application")]
    + [(status, "application") for status in (304, 403, 404, 405, 407, 408, 429, 500, 503)],
)
def test_a_refusal_of_what_was_sent_is_a_business_failure(status: int, reason: str) -> None:
    assert failed(Answer(status)).failure_reason == reason


@pytest.mark.parametrize(
    "entry, reason, is_permanent",
    [
        ({"status": 422}, "business", True),
        ({"status": 422, "failure_reason": "application"}, "application", True),
        ({"status": 503}, "application", False),
        ({"status": 503, "failure_reason": "business"}, "business", False),
        ({"status": "rejected"}, "business", True),
        ({"status": "failed"}, "application", True),
        ({"status": "retry", "failure_reason": "BUSINESS"}, "business", False),
        ({"error": "no credit", "failure_reason": "business"}, "business", True),
        ({"failure_reason": "business"}, "business", True),
        ({"error": "down", "failure_reason": "what"}, "application", False),
    ],
)
def test_an_item_s_result_says_whose_fault_it_was(
    entry: dict[str, Any], reason: str, is_permanent: bool
) -> None:
    content = [{"id": "r-0", **entry}, {"id": "r-1", "status": "ok", "failure_reason": "business"}]
    found = item_failures(Answer(200, {}, json.dumps(content).encode()), IDS)
    assert [(at, one.failure_reason, one.is_permanent) for at, one in found.items()] == [
        (0, reason, is_permanent)
    ]


def test_a_redirect_says_where_it_points() -> None:
    text = failed(Answer(307, {"location": "https://new.example/hook"})).text
    assert text.startswith("307 from http://crm:80: redirects to https://new.example/hook")


@pytest.mark.parametrize(
    "value, pause",
    [
        ("0", 0),
        ("7", 7),
        (" 1.5 ", 1.5),
        ("-3", 0),
        ("86401", 86400),
        ("inf", 86400),
        ("1e999", 86400),
        ("nan", None),
        ("Tue, 14 Nov 2023 22:14:00 GMT", 40),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Tue, 14 Nov 2034 22:13:00 GMT", 86400),
        ("Tue, 99 Nov 2023 22:14:00 GMT", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, pause: float | None) -> None:
    assert retry_after_s(value, NOW) == pause
    assert failed(Answer(503, {"retry-after": value})).retry_after_s == pause
    assert failed(Answer(400, {"retry-after": value})).retry_after_s is None


def test_the_beginning_of_what_it_says_is_told() -> None:
    said = b"no such\r\n  field: \x07" + b"x" * 1000
    text = failed(Answer(400, {"content-type": "text/plain"}, said)).text
    assert text.startswith("400 from http://crm:80: no such field: \ufffdxxx")
    assert len(text) < 250


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "image/png"}, {"content-type": "text/plain", "content-encoding": "gzip"}],
)
def test_what_is_no_text_is_not_told(headers: dict[str, str]) -> None:
    assert text_of(Answer(500, headers, b"\x89PNG")) == ""


class TestItems:
    @pytest.mark.parametrize("wrap", [lambda found: found, lambda found: {"results": found}])
    def test_results_are_found_by_id(self, wrap: Any) -> None:
        content = [
            {"id": "r-2", "status": 503, "error": "busy"},
            {"id": "r-0", "status": 422, "error": "no name"},
            {"id": "r-9", "status": 422},
        ]
        assert results(wrap(content)) == {2: (False, 503, "busy"), 0: (True, 422, "no name")}

    def test_results_without_ids_are_in_order_if_there_is_one_for_each(self) -> None:
        content = [{"status": 200}, {"status": "failed"}, {"status": "ok"}]
        assert results(content) == {1: (True, None, "the answer says failed")}
        assert results(content, ["r-0", "r-1"]) == {}

    def test_a_bulk_answer_is_read_in_order(self) -> None:
        content = {
            "took": 3,
            "errors": True,
            "items": [
                {"index": {"_id": "x", "id": "r-2", "status": 201}},
                {"create": {"status": 429, "error": {"type": "es_rejected", "reason": "full"}}},
                {"delete": {"status": 404}},
            ],
        }
        assert results(content) == {
            1: (False, 429, '{"type":"es_rejected","reason":"full"}'),
            2: (True, 404, "the answer says 404"),
        }

    @pytest.mark.parametrize("status", [200, 204, "201", "ok", "OK", "done", "success", True, None])
    def test_delivered(self, status: object) -> None:
        assert results([{"id": "r-0", "status": status}]) == {}

    @pytest.mark.parametrize("status", [429, 500, "503", "retry", "later", False, 0, 3.5, [], {}])
    def test_retried(self, status: object) -> None:
        ((permanent, _, _),) = results([{"id": "r-0", "status": status}]).values()
        assert not permanent

    @pytest.mark.parametrize("status", [400, "404", 301, 413, "failed", "Rejected", "invalid"])
    def test_refused(self, status: object) -> None:
        ((permanent, _, _),) = results([{"id": "r-0", "status": status}]).values()
        assert permanent

    def test_an_error_without_a_status_is_tried_again(self) -> None:
        assert results([{"id": "r-0", "error": "busy"}]) == {0: (False, None, "busy")}

    def test_an_item_may_ask_for_a_pause(self) -> None:
        body = b'[{"id":"r-1","status":"retry","retry_after":12}]'
        assert item_failures(Answer(200, {}, body), IDS)[1].retry_after_s == 12

    def test_the_last_word_on_an_item_counts(self) -> None:
        again = [{"id": "r-0", "status": 500}, {"id": "r-0", "status": 200}]
        assert results(again) == {}
        assert list(results(again[::-1])) == [0]

    def test_refused_items_blame_nobody_unless_all_of_them_are_to_wait(self) -> None:
        def blamed(*statuses: int) -> list[bool]:
            content = [{"status": status} for status in statuses]
            found = item_failures(Answer(200, {}, json.dumps(content).encode()), IDS)
            return [one.blames_destination for one in found.values()]

        assert blamed(429, 503, 200) == [False, False]
        assert blamed(429, 503, 400) == [False, False, False]
        assert blamed(429, 503, 503) == [True, True, True]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"ok",
            b'{"results":',
            b"[" * 100_000,
            b'{"results":null}',
            b'{"results":{"r-0":500}}',
            b'[null,1,"r-0",[500]]',
            b'[{"id":7,"status":500}]',
            b'[{"id":["r-0"],"status":500}]',
            b"\x1f\x8b",
        ],
    )
    def test_what_is_not_understood_counts_as_nothing_said(self, body: bytes) -> None:
        assert item_failures(Answer(200, {}, body), IDS) == {}

    def test_half_a_list_counts_as_nothing_said(self) -> None:
        body = b'[{"id":"r-0","status":500}]'
        assert item_failures(Answer(200, {}, body, is_cut=True), IDS) == {}


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["r-0", "ok", "retry", "failed", 200, 429, 1e400, -1])
)
_names = st.sampled_from(["results", "items", "id", "status", "error", "retry_after", "index"])
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=20,
)


@given(_json)
def test_no_answer_is_too_odd(content: Any) -> None:
    body = json.dumps(content).encode("utf-8", "surrogatepass")
    for failure in item_failures(Answer(200, {}, body), IDS).values():
        failure.text.encode()


@given(st.binary(max_size=60), st.dictionaries(_names, st.text(max_size=9)), st.integers(100, 999))
def test_no_failure_is_too_odd(body: bytes, headers: dict[str, str], status: int) -> None:
    failed(Answer(status, headers, body)).text.encode()
    item_failures(Answer(status, headers, body), IDS)


# Answers of real APIs, with 2xx.

SALESFORCE = [
    {"id": "003", "success": True, "errors": []},
    {
        "success": False,
        "errors": [{"statusCode": "REQUIRED_FIELD_MISSING", "message": "LastName is missing"}],
    },
    {"success": False, "errors": [{"statusCode": "UNABLE_TO_LOCK_ROW", "message": "locked"}]},
]
GRAPHQL = {"data": {"a": None}, "errors": [{"message": "no such contact", "path": ["a"]}]}
BULK = {
    "errors": True,
    "items": [
        {"index": {"status": 201}},
        {"index": {"status": 429, "error": {"type": "rejected"}}},
        {"index": {"status": 400, "error": {"type": "mapper_parsing_exception"}}},
    ],
}


def ok(content: Any, status: int = 200) -> Answer:
    return Answer(status, {"content-type": "application/json"}, json.dumps(content).encode())


class TestWithoutRules:
    def test_a_list_of_successes_names_the_items_that_failed(self) -> None:
        found = item_failures(ok(SALESFORCE))
        assert {at: one.text for at, one in found.items()} == {
            1: "LastName is missing",
            2: "locked",
        }
        assert all(one.is_permanent and one.failure_reason == "business" for one in found.values())

    def test_a_list_of_another_length_says_nothing(self) -> None:
        assert item_failures(ok(SALESFORCE[1:])) == {}

    def test_errors_beside_data_fail_the_request(self) -> None:
        found = item_failures(ok(GRAPHQL))
        assert [(at, one.text) for at, one in found.items()] == [
            (at, "no such contact") for at in range(3)
        ]

    def test_data_without_errors_is_delivered(self) -> None:
        assert read(ok({"data": {"a": 1}})) == Understood()
        assert read(ok({"data": {"a": 1}, "errors": []})) == Understood()

    def test_a_bulk_answer_names_its_items(self) -> None:
        assert {at: one.status for at, one in item_failures(ok(BULK)).items()} == {1: 429, 2: 400}

    @pytest.mark.parametrize(
        "answer",
        [
            ok({"message": "success", "errors": [{"type": "invalid email", "index": 1}]}, 201),
            ok({"status": "COMPLETE", "numErrors": 1, "errors": [{"status": "error"}]}, 207),
            ok({"anything": 1}, 207),
            Answer(207),
        ],
        ids=["braze", "hubspot", "207", "207 without a body"],
    )
    def test_what_seems_to_fail_is_delivered_and_said(self, answer: Answer) -> None:
        assert read(answer) == Understood({}, is_suspect=True)

    def test_what_seems_to_fail_fails_if_that_is_wanted(self) -> None:
        assert isinstance(read(Answer(207), suspect="fail"), Failure)
        found = read(ok({"errors": ["no"]}, 200), suspect="fail")
        assert isinstance(found, Failure)
        assert (found.blames_destination, found.is_permanent) == (True, False)
        assert found.text == '200, but the answer reports errors: ["no"]'


class TestRules:
    RULES: ClassVar = {
        "ok": "success",
        "error": "errors[0].message",
        "code": "errors[0].statusCode",
        "retry": "errors[0].statusCode == 'UNABLE_TO_LOCK_ROW'",
    }

    def test_each_item_has_the_outcome_that_the_rules_find(self) -> None:
        found = item_failures(ok(SALESFORCE), answer=self.RULES)
        assert {at: (one.text, one.is_permanent) for at, one in found.items()} == {
            1: ("REQUIRED_FIELD_MISSING: LastName is missing", True),
            2: ("UNABLE_TO_LOCK_ROW: locked", False),
        }

    def test_a_list_within_the_answer_is_found(self) -> None:
        rules = {"items": "outcome.rows", "ok": "done"}
        content = {"outcome": {"rows": [{"done": True}, {"done": 1}, {}]}}
        assert list(item_failures(ok(content), answer=rules)) == [1, 2]

    def test_items_are_matched_by_their_id(self) -> None:
        rules = {"items": "errors", "match": "id", "id": "ref", "error": "why"}
        content = {"errors": [{"ref": "r-2", "why": "late"}, {"ref": "r-9"}]}
        found = item_failures(ok(content), answer=rules)
        assert {at: one.text for at, one in found.items()} == {2: "late"}

    def test_items_are_matched_by_their_position_in_the_request(self) -> None:
        rules = {"items": "errors", "match": "index", "error": "type"}
        content = {"errors": [{"type": "no id", "index": 2}, {"type": "no time", "index": 0}]}
        found = item_failures(ok(content), answer=rules)
        assert {at: one.text for at, one in found.items()} == {2: "no id", 0: "no time"}
        rules["index"] = "at.row"
        content = {"errors": [{"type": "no id", "at": {"row": "1"}}]}
        assert list(item_failures(ok(content), answer=rules)) == [1]
        assert item_failures(ok({"errors": []}), answer=rules) == {}

    def test_an_entry_may_be_about_several_items(self) -> None:
        rules = {"items": "errors", "match": "id", "id": "refs", "error": "why"}
        content = {"errors": [{"refs": ["r-2", "r-0"], "why": "late"}]}
        assert list(item_failures(ok(content), answer=rules)) == [2, 0]

    @pytest.mark.parametrize("match", ["id", "index"])
    @pytest.mark.parametrize("named", [{}, None, [], "r-9", 3, -1, True, 1.0, ["r-0", "r-9"]])
    def test_a_failure_of_an_unknown_item_is_a_failure_of_the_destination(
        self, match: str, named: Any
    ) -> None:
        rules = {"items": "@", "match": match, match: "at", "error": "why"}
        found = read(ok([{"at": named, "why": "late"}]), answer=rules)
        assert isinstance(found, Failure)
        assert (found.blames_destination, found.is_permanent) == (True, False)
        assert f"answer.{match} finds" in found.text
        known = ok([{"at": named}])
        assert read(known, answer=rules) == Understood()

    def test_a_status_decides_about_a_retry(self) -> None:
        rules = {"code": "status", "error": "error"}
        content = [{"status": 200}, {"status": 503, "error": "busy"}, {"status": "422"}]
        found = item_failures(ok(content), answer=rules)
        assert {at: (one.status, one.is_permanent) for at, one in found.items()} == {
            1: (503, False),
            2: (422, True),
        }

    def test_retry_and_a_status_each_ask_for_a_retry(self) -> None:
        rules = {"code": "status", "retry": "again"}
        content = [{"status": 503}, {"status": 422, "again": True}, {"status": 422}]
        found = item_failures(ok(content), answer=rules)
        assert {at: one.is_permanent for at, one in found.items()} == {0: False, 1: False, 2: True}

    @pytest.mark.parametrize(
        "answer",
        [
            ok({"message": "accepted"}),
            ok(SALESFORCE[1:]),
            ok(None),
            Answer(200, {}, b"<html>"),
            Answer(204),
        ],
    )
    def test_another_form_is_a_failure_of_the_destination(self, answer: Answer) -> None:
        found = read(answer, answer={"ok": "success"})
        assert isinstance(found, Failure)
        assert (found.blames_destination, found.is_permanent) == (True, False)
        assert "answer.items finds" in found.text
        assert read(answer, answer={"ok": "success", "unknown": "deliver"}) == Understood(
            {}, is_suspect=True
        )

    @pytest.mark.parametrize(
        "rules, text",
        [
            ({"ok": "a["}, "'a[' is not valid JMESPath"),
            ({"ok": "!" * 1000 + "a"}, "at most 1000 characters"),
            ({"ok": ""}, "is not valid JMESPath"),
            ({"ok": "no_such()"}, None),
            ({}, "give ok, error or code"),
            ({"ok": "a", "unknown": "retry"}, "'fail' or 'deliver'"),
            ({"ok": "a", "of": "b"}, "Extra inputs"),
            ({"ok": "a", "match": "key"}, "'position', 'id' or 'index'"),
        ],
    )
    def test_bad_rules_are_refused_at_once(self, rules: dict[str, str], text: str | None) -> None:
        if text is None:
            # JMESPath knows its functions only when it calls them: nothing is found.
            assert len(item_failures(ok([{}, {}, {}]), answer=rules)) == 3
            return
        with pytest.raises(ValidationError, match=re.escape(text)):
            HttpHandler.model_validate({"url": "http://crm/", "answer": rules})


class TestOutage:
    RULE = "status == `423` || body[0].errorCode == 'REQUEST_LIMIT_EXCEEDED'"

    def failure(self, answer: Answer, outage: str | None = RULE) -> Failure:
        handler = HttpHandler.model_validate({"url": "http://crm:80/", "outage": outage})
        return AnswerReader(handler).failure(answer, "http://crm:80", NOW)

    @pytest.mark.parametrize(
        "answer", [Answer(423), ok([{"errorCode": "REQUEST_LIMIT_EXCEEDED"}], 403)]
    )
    def test_a_refusal_that_the_rule_names_is_a_failure_of_the_destination(
        self, answer: Answer
    ) -> None:
        found = self.failure(answer)
        assert (found.blames_destination, found.is_permanent) == (True, False)
        assert (found.status, found.failure_reason) == (answer.status, "application")
        assert found.text == failed(answer).text

    def test_it_may_ask_for_a_pause(self) -> None:
        assert self.failure(Answer(423, {"retry-after": "7"})).retry_after_s == 7

    @pytest.mark.parametrize(
        "answer",
        [ok([{"errorCode": "INSUFFICIENT_ACCESS"}], 403), Answer(403, {}, b"<html>"), Answer(503)],
    )
    def test_any_other_answer_means_what_it_did(self, answer: Answer) -> None:
        assert self.failure(answer) == failed(answer) == self.failure(answer, None)


def test_rules_that_would_not_be_used_are_refused() -> None:
    with pytest.raises(ValidationError, match="answer needs item_results"):
        read(ok([]), item_results=False, answer={"ok": "a"})


def test_an_answer_that_was_cut_says_so() -> None:
    cut = Answer(200, {}, b"[{}", is_cut=True)
    found = read(cut, answer={"ok": "a"})
    assert isinstance(found, Failure)
    assert found.text.startswith("200, but the answer is longer than answer_bytes_max")


@given(_json, st.sampled_from(["a", "status", "length(@)", "results[0].status", "@", "*", "[]"]))
def test_no_answer_is_too_odd_for_rules(content: Any, expression: str) -> None:
    rules = {"items": expression, "error": expression, "code": "status"}
    found = read(ok(content), answer=rules)
    for one in [found] if isinstance(found, Failure) else found.failures.values():
        one.text.encode()


_keys = st.sampled_from(["a", "b", "_a1", "results", "status"])
_paths = st.sampled_from(
    ["a", "a.b", "a[0]", "a[1].b", "a.b[0][1]", "_a1.b", "results[0].status", "a[9999]"]
)
_nested = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


@given(_paths, _nested)
def test_plain_paths_are_followed_as_jmespath_does(expression: str, content: Any) -> None:
    assert _getter(expression)(content) == jmespath.search(expression, content)
