"""The fields of a CONTROL request (docs/protocol.md "CONTROL"), checked as they are read."""

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from actors.model.masking import holds_mask
from actors.model.refusals import bad_request
from actors.ports.tiers import DeadFilter, DeadLetter
from forebay.item import FAILURE_REASONS, FailureReason, read_failure_reason

LIMIT_MAX: Final = 1000
IDS_MAX: Final = 1000
STOP_AT: Final = 100_000


class Fields:
    """The fields of a request; missing, invalid or unknown ones are refused."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    def text(self, name: str) -> str:
        value = self._fields.pop(name, None)
        if not isinstance(value, str) or not value:
            raise bad_request(f"{name} must be a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        value = self._fields.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{name} must be a text")
        return value

    def number(self, name: str, default: int | None, first: int = 0, last: int = 2**53) -> Any:
        value = self._fields.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not first <= value <= last:
            raise bad_request(f"{name} must be a whole number, {first} to {last}")
        return value

    def flag(self, name: str) -> bool:
        value = self._fields.pop(name, False)
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be true or false")
        return value

    def object(self, name: str) -> dict[str, Any]:
        value = self._fields.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise bad_request(f"{name} must be an object")
        return value

    def settings(self) -> dict[str, Any]:
        """Settings to put in force. Refuses masked secrets, which would replace the real ones."""
        settings = self.object("settings")
        if holds_mask(settings):
            raise bad_request(
                "settings: a secret is masked as ***: leave it out, or give it in full"
            )
        return settings

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        value = self._fields.pop(name, None)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise bad_request(f"{name} must be a list of texts")
        if len(value) > most:
            raise bad_request(f"{name} has at most {most} entries")
        return tuple(value)

    def bytes(self, name: str) -> bytes | None:
        text = self.text_or_none(name)
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise bad_request(f"{name} is not base64") from None

    def end(self) -> None:
        if self._fields:
            raise bad_request(f"unknown field {next(iter(self._fields))!r}")


Operation = Callable[[Fields], Awaitable[dict[str, Any]]]


@contextmanager
def cursor_is_known() -> Iterator[None]:
    """Turns a store's ValueError about a cursor that it did not issue into a refusal."""
    try:
        yield
    except ValueError as problem:
        raise bad_request(f"cursor: {problem}") from problem


def read_filter(fields: Fields) -> DeadFilter:
    which = Fields(fields.object("which"))
    found = DeadFilter(
        which.text_or_none("queue"),
        which.text_or_none("flow"),
        which.text_or_none("action"),
        which.text_or_none("error"),
        which.number("died_before_ms", None),
        which.number("died_after_ms", None),
        which.texts("ids", IDS_MAX),
        read_reason(which),
    )
    which.end()
    return found


def read_reason(fields: Fields) -> FailureReason | None:
    text = fields.text_or_none("failure_reason")
    if text is None:
        return None
    reason = read_failure_reason(text)
    if reason is None:
        raise bad_request(f"failure_reason must be one of {', '.join(FAILURE_REASONS)}")
    return reason


def cursor_text(cursor: bytes | None) -> str | None:
    return None if cursor is None else base64.b64encode(cursor).decode()


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    letter_ = {
        "id": letter.id,
        "queue": letter.queue,
        "flow": letter.flow,
        "action": letter.action,
        "key": letter.key,
        "priority": letter.priority,
        "attempt": letter.attempt,
        "enqueued_ms": letter.enqueued_ms,
        "died_ms": letter.died_ms,
        "headers": dict(letter.headers),
        "errors": [error._asdict() for error in letter.errors],
    }
    if letter.payload is not None:
        try:
            letter_["payload"] = letter.payload.decode()
        except UnicodeDecodeError:
            letter_["payload_b64"] = base64.b64encode(letter.payload).decode()
    return letter_
