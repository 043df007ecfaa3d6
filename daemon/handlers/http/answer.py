"""Decides what an HTTP answer means for a batch and for each of its items. Pure.

docs/handlers.md has the table. No answer makes these functions raise: unknown contents of a 2xx
answer are ignored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import msgspec

from actors.model.masking import MASK
from actors.model.outcomes import Failure
from forebay.item import FailureReason, read_failure_reason

RETRY_AFTER_S_MAX: Final = 86_400.0
TEXT_CHARACTERS_MAX: Final = 200

Verdict = Literal["delivered", "refused", "retry", "too_large"]

_RETRY: Final = frozenset([408, 425, 429])
_DELIVERED_WORDS: Final = frozenset(["ok", "done", "success", "delivered"])
_REFUSED_WORDS: Final = frozenset(["failed", "rejected", "invalid"])
_BUSINESS_WORDS: Final = frozenset(["rejected", "invalid"])
_NOT_THE_ITEM: Final = frozenset([401, 403, 404, 405, 407])
"""Refusals that concern the address, or the permission to use it."""
_BULK_ACTIONS: Final = frozenset(["index", "create", "update", "delete"])
_LISTS: Final = ("results", "items")
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
    if status == 413:
        return "too_large"
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
        where = answer.headers.get("location", "nowhere")[:TEXT_CHARACTERS_MAX]
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
    start = answer.body[: 8 * TEXT_CHARACTERS_MAX].decode(errors="replace")
    words = " ".join(start.split())[:TEXT_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else "�" for letter in words)


def item_failures(answer: Answer, ids: Sequence[str]) -> dict[int, Failure]:
    """The failures of items that the destination did not take, by their number in the batch.

    They do not count against the destination, unless it asks to retry all of them later.
    """
    results = _results(answer)
    if not results:
        return {}
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
    if len(failures) == len(ids) and not any(one.is_permanent for one in failures.values()):
        return {at: replace(one, blames_destination=True) for at, one in failures.items()}
    return failures


def _results(answer: Answer) -> list[Any]:
    if answer.is_cut or not answer.body:
        return []
    try:
        content = _read_json(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return []
    if isinstance(content, dict):
        content = next((content[name] for name in _LISTS if name in content), None)
    return content if isinstance(content, list) else []


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
