"""Decides what an HTTP answer means for a batch and for each of its items. Pure.

docs/handlers.md has the table. No answer makes these functions raise. A 2xx answer means that all
items were delivered, unless it says otherwise in a form that is known or that the handler's
`answer` rules describe.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec

from actors.config.http import AnswerRules, HttpHandler, header_texts
from actors.config.secrets import Secret
from actors.model.masking import MASK, SECRET_CHARACTERS_MIN, named_secrets
from actors.model.outcomes import Failure
from actors.model.secret_values import SECRET_VALUES
from forebay.item import FailureReason, read_failure_reason

RETRY_AFTER_S_MAX: Final = 86_400.0
TEXT_CHARACTERS_MAX: Final = 200

SPLIT_STATUSES: Final = frozenset([400, 409, 413, 422])
"""Refusals that may concern single items of a batch."""

Verdict = Literal["delivered", "refused", "retry"]

_RETRY: Final = frozenset([401, 407, 408, 425, 429])
"""Not the items' fault: wrong or expired credentials, and requests that come at a bad time."""
_DELIVERED_WORDS: Final = frozenset(["ok", "done", "success", "delivered"])
_REFUSED_WORDS: Final = frozenset(["failed", "rejected", "invalid"])
_BUSINESS_WORDS: Final = frozenset(["rejected", "invalid"])
_NOT_THE_ITEM: Final = frozenset([401, 403, 404, 405, 407])
"""Refusals that concern the address, or the permission to use it."""
_BULK_ACTIONS: Final = frozenset(["index", "create", "update", "delete"])
_LISTS: Final = ("results", "items")
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\[\d{1,4}\])*(\.[A-Za-z_]\w*(\[\d{1,4}\])*)*", re.ASCII)
"""Names and places in lists, such as `errors[0].message`."""
_TEXT_TYPES: Final = ("text/", "application/json", "application/problem+json", "application/xml")

_read_json = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or as much of it as was read."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name."""
    body: bytes = b""
    is_cut: bool = False
    """Whether it was longer than the limit."""


def verdict(status: int) -> Verdict:
    if 200 <= status < 300:
        return "delivered"
    if status in _RETRY or status >= 500:
        return "retry"
    return "refused"


def reason_of(status: int | None) -> FailureReason:
    """The failure reason of a status: a destination that refuses a request has examined it."""
    is_business = status is not None and 400 <= status < 500 and verdict(status) != "retry"
    return "business" if is_business and status not in _NOT_THE_ITEM else "application"


def failure_of(answer: Answer, destination: str, now_s: float) -> Failure:
    """The failure that an answer other than 2xx means."""
    status = answer.status
    text = f"{status} from {destination}"
    if 300 <= status < 400:
        # Masked before it is cut: half a secret would not be recognised.
        where = SECRET_VALUES.masked(answer.headers.get("location", "nowhere"))
        where = where[:TEXT_CHARACTERS_MAX]
        text += f": redirects to {where}, which forebay does not follow: put it into url"
    elif said := text_of(answer):
        text += f": {said}"
    if verdict(status) != "retry":
        return Failure(
            text,
            status=status,
            is_permanent=True,
            blames_destination=False,
            failure_reason=reason_of(status),
        )
    pause = retry_after_s(answer.headers.get("retry-after"), now_s)
    return Failure(text, status=status, retry_after_s=pause)


def secrets_of(url: str, headers: Mapping[str, str | Secret]) -> tuple[bytes, ...]:
    """The secrets of a request, which its destination may repeat."""
    found = {value.value for value in headers.values() if isinstance(value, Secret)}
    found = {text for text in found if len(text) >= SECRET_CHARACTERS_MIN}
    found |= {*named_secrets(url, header_texts(headers))}
    return tuple(sorted((text.encode() for text in found), key=len, reverse=True))


def without_secrets(answer: Answer, secrets: Sequence[bytes]) -> Answer:
    """The answer without secrets of the request that it repeats, as in "Cannot POST /?token=…"."""
    body = answer.body
    for secret in secrets:
        if secret in body:
            body = body.replace(secret, MASK.encode())
    return answer if body is answer.body else replace(answer, body=body)


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """The pause that a Retry-After asks for, at most a day; None if it asks for none."""
    if value is None:
        return None
    value = value.strip()
    try:
        pause = float(value)
    except ValueError:
        try:
            pause = parsedate_to_datetime(value).timestamp() - now_s
        except (ValueError, TypeError, OverflowError):
            return None
    return None if math.isnan(pause) else min(max(pause, 0.0), RETRY_AFTER_S_MAX)


def text_of(answer: Answer) -> str:
    """The beginning of the answer's text, on one line; empty if its body is not text."""
    kind = answer.headers.get("content-type", "text/plain").lower()
    if not kind.startswith(_TEXT_TYPES) or "content-encoding" in answer.headers:
        return ""
    # A character has at most 4 bytes; whitespace is removed, so a little more is decoded.
    start = SECRET_VALUES.masked(answer.body[: 8 * TEXT_CHARACTERS_MAX].decode(errors="replace"))
    words = " ".join(start.split())[:TEXT_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else "�" for letter in words)


class Understood(NamedTuple):
    """What a 2xx answer says about the items of a request."""

    failures: Mapping[int, Failure] = {}
    """Items that the destination did not take, by their number in the batch."""
    is_suspect: bool = False
    """It seems to report errors in a form that is not understood; all items count as delivered."""


class AnswerReader:
    """Reads 2xx answers by a handler's rules, or in the forms that are known without rules.

    An answer that does not have the form that the rules describe is a failure of the destination.
    """

    def __init__(self, settings: HttpHandler) -> None:
        self._reads_items = settings.item_results
        self._suspect_fails = settings.suspect == "fail"
        self._rules = None if settings.answer is None else _Rules(settings.answer)
        self._outage = None if settings.outage is None else _getter(settings.outage)

    def failure(self, answer: Answer, destination: str, now_s: float) -> Failure:
        """The failure that an answer other than 2xx means, by the handler's `outage` rule too."""
        failure = failure_of(answer, destination, now_s)
        if failure.blames_destination or self._outage is None:
            return failure
        if self._outage({"status": answer.status, "body": _content(answer)}) is not True:
            return failure
        pause = retry_after_s(answer.headers.get("retry-after"), now_s)
        return Failure(failure.text, status=answer.status, retry_after_s=pause)

    def read(self, answer: Answer, ids: Sequence[str]) -> Understood | Failure:
        """A Failure concerns the whole request."""
        if not self._reads_items:
            return Understood()
        content = _content(answer)
        if self._rules is not None:
            return self._rules.read(content, answer, ids)
        found = None if content is None else _known_form(content, ids)
        if found is not None:
            return Understood(_fair(found, len(ids)))
        if not (answer.status == 207 or _seems_to_fail(content)):
            return Understood()
        if not self._suspect_fails:
            return Understood(is_suspect=True)
        said = _said(content.get("errors")) if isinstance(content, dict) else ""
        return Failure(f"{answer.status}, but the answer reports errors: {said or 'see its body'}")


def _fair(failures: dict[int, Failure], items: int) -> dict[int, Failure]:
    """Failures of single items do not count against the destination, unless it asks to retry all of
    them later."""
    if len(failures) == items and not any(one.is_permanent for one in failures.values()):
        return {at: replace(one, blames_destination=True) for at, one in failures.items()}
    return failures


def _content(answer: Answer) -> Any:
    """The JSON document of the body; None if it is not one."""
    if answer.is_cut or not answer.body:
        return None
    try:
        return _read_json(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _known_form(content: Any, ids: Sequence[str]) -> dict[int, Failure] | None:
    """The failures in an answer whose form needs no rule; None if it has another form.

    `{"results": [...]}` or `{"items": [...]}` with `status` or `error` in each entry; a list as
    long as the batch with a boolean `success` in each entry; `data` beside a list of `errors`, as
    GraphQL answers.
    """
    if isinstance(content, dict):
        results = next((content[name] for name in _LISTS if name in content), None)
        if isinstance(results, list):
            return _results(results, ids)
        errors = content.get("errors")
        if "data" in content and isinstance(errors, list) and errors:
            first = errors[0]
            said = _said(first.get("message") if isinstance(first, dict) else first)
            failure = Failure(said or "the answer reports errors", blames_destination=False)
            return dict.fromkeys(range(len(ids)), failure)
        return None
    if not isinstance(content, list):
        return None
    if len(content) == len(ids) and all(_has_success(entry) for entry in content):
        return {
            at: _unsuccessful(entry) for at, entry in enumerate(content) if not entry["success"]
        }
    return _results(content, ids)


def _has_success(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("success"), bool)


def _unsuccessful(entry: dict[str, Any]) -> Failure:
    errors = entry.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else entry
    said = ""
    if isinstance(first, dict):
        said = _said(first.get("message") or first.get("error"))
    return Failure(
        said or "the answer says success: false",
        is_permanent=True,
        blames_destination=False,
        failure_reason="business",
    )


def _seems_to_fail(content: Any) -> bool:
    return isinstance(content, dict) and bool(content.get("errors"))


def _results(results: list[Any], ids: Sequence[str]) -> dict[int, Failure]:
    numbers: dict[str, int] = {}
    failures: dict[int, Failure] = {}
    for position, entry in enumerate(results):
        if not isinstance(entry, dict):
            continue
        entry, is_bulk = _unwrapped(entry)
        item_id = None if is_bulk else entry.get("id")
        if item_id is None:
            # Without ids, results belong to the items by position, if there are as many.
            number = position if len(results) == len(ids) else None
        else:
            numbers = numbers or {item_id: at for at, item_id in enumerate(ids)}
            number = numbers.get(item_id) if isinstance(item_id, str) else None
        if number is None:
            continue
        failure = _item_failure(entry)
        if failure is None:
            failures.pop(number, None)
        else:
            failures[number] = failure
    return failures


class _Rules:
    """The rules of a handler, compiled."""

    def __init__(self, rules: AnswerRules) -> None:
        self._rules = rules
        self._items = _getter(rules.items)
        self._id = _getter(rules.index if rules.match == "index" else rules.id)
        self._ok = None if rules.ok is None else _getter(rules.ok)
        self._error = None if rules.error is None else _getter(rules.error)
        self._code = None if rules.code is None else _getter(rules.code)
        self._retry = None if rules.retry is None else _getter(rules.retry)

    def read(self, content: Any, answer: Answer, ids: Sequence[str]) -> Understood | Failure:
        entries = None if content is None else self._items(content)
        by_position = self._rules.match == "position"
        if not isinstance(entries, list) or (by_position and len(entries) != len(ids)):
            found = f"a list of {len(entries)}" if isinstance(entries, list) else "no list"
            return self._unknown(f"answer.items finds {found} for {len(ids)} items", answer)
        names = ids if self._rules.match == "id" else map(str, range(len(ids)))
        numbers: dict[str, int] = {}
        failures: dict[int, Failure] = {}
        for position, entry in enumerate(entries):
            failure = self._failure(entry)
            if failure is None:
                continue
            numbers = numbers or {name: at for at, name in enumerate(names)}
            for name in [position] if by_position else self._named(entry):
                number = numbers.get(str(name))
                if number is None:
                    # Taking all items as delivered would lose the one that this is about.
                    rule = f"answer.{self._rules.match} finds {_said(name) or 'nothing'}"
                    problem = f"{rule}, which is not an item of the request, in a failed entry"
                    return self._unknown(problem, answer)
                failures[number] = failure
        return Understood(_fair(failures, len(ids)))

    def _named(self, entry: Any) -> list[Any]:
        """The ids or positions of the items that an entry is about."""
        named = self._id(entry)
        return (named or [None]) if isinstance(named, list) else [named]

    def _unknown(self, problem: str, answer: Answer) -> Understood | Failure:
        if self._rules.unknown == "deliver":
            return Understood(is_suspect=True)
        if answer.is_cut:
            problem = "the answer is longer than answer_bytes_max"
        return Failure(f"{answer.status}, but {problem}: {text_of(answer)}")

    def _failure(self, entry: Any) -> Failure | None:
        said = None if self._error is None else self._error(entry)
        code = None if self._code is None else self._code(entry)
        number = _number(code)
        if self._ok is not None:
            if self._ok(entry) is True:
                return None
        elif not said and (not code or (number is not None and verdict(number) == "delivered")):
            return None
        is_permanent = number is None or verdict(number) != "retry"
        if is_permanent and self._retry is not None:
            is_permanent = self._retry(entry) is not True
        text = _said(said) or "the answer refuses the item"
        if code is not None and str(code) not in text:
            text = f"{_said(code)}: {text}"
        return Failure(
            text,
            status=number,
            is_permanent=is_permanent,
            blames_destination=False,
            failure_reason="business" if is_permanent else "application",
        )


def _follow(steps: Sequence[str | int], content: Any) -> Any:
    for step in steps:
        if isinstance(step, str):
            content = content.get(step) if isinstance(content, dict) else None
        else:
            is_there = isinstance(content, list) and step < len(content)
            content = content[step] if is_there else None
    return content


def _getter(expression: str) -> Callable[[Any], Any]:
    """A JMESPath expression as a function. A plain path is followed directly: JMESPath's
    interpreter takes at least 15 times as long, per entry."""
    if expression == "@":
        return lambda content: content
    if _PATH.fullmatch(expression):
        steps = [
            int(step) if step.isdigit() else step for step in re.split(r"\]?[.\[]|\]", expression)
        ]
        return partial(_follow, [step for step in steps if step != ""])
    from jmespath import compile as compile_expression
    from jmespath.exceptions import JMESPathError

    compiled = compile_expression(expression)

    def search(content: Any) -> Any:
        try:
            return compiled.search(content)
        except JMESPathError:
            # A function that does not fit the type of its argument, such as length(number).
            return None

    return search


def _unwrapped(entry: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """In a bulk answer an entry is wrapped in its action, and its id is the document's."""
    if len(entry) == 1:
        ((action, inner),) = entry.items()
        if action in _BULK_ACTIONS and isinstance(inner, dict):
            return inner, True
    return entry, False


def _item_failure(entry: dict[str, Any]) -> Failure | None:
    status = entry.get("status")
    error = entry.get("error")
    reason = read_failure_reason(entry.get("failure_reason"))
    number, word = _number(status), str(status).lower()
    if number is not None:
        says = verdict(number)
    elif status is None:
        failed: Verdict = "refused" if reason == "business" else "retry"
        says = failed if error or reason else "delivered"
    elif status is True or word in _DELIVERED_WORDS:
        says = "delivered"
    else:
        says = "refused" if word in _REFUSED_WORDS else "retry"
    if says == "delivered":
        return None
    guess: FailureReason = "business" if word in _BUSINESS_WORDS else reason_of(number)
    said = _said(error) or f"the answer says {_said(status if status is not None else reason)}"
    return Failure(
        said,
        status=number,
        retry_after_s=_pause(entry.get("retry_after")),
        is_permanent=says != "retry",
        blames_destination=False,
        failure_reason=reason or guess,
    )


def _number(status: object) -> int | None:
    """The status as an HTTP status number; None if it is a word or anything else."""
    if isinstance(status, str) and len(status) == 3 and status.isascii() and status.isdigit():
        status = int(status)
    return status if isinstance(status, int) and 100 <= status < 600 else None


def _pause(value: object) -> float | None:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return retry_after_s(str(float(value)), 0)
    return None


def _said(content: object) -> str:
    if not content:
        return ""
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]
