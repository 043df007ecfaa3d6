"""Turns pydantic's errors into lines that an operator can act on.

forebay.yaml:12: spool.max_bytes: '5 apples' is not a size: write bytes or a unit, as 512Mi
FOREBAY_SPOOL__MAXBYTES: spool.maxbytes: no such key; did you mean FOREBAY_SPOOL__MAX_BYTES?
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from actors.config.auth import AnyAuth
from actors.config.handlers import AnyHandler
from actors.config.http import AnswerRules, RequestSettings
from actors.config.observers import NotificationSettings, WebhookSettings
from actors.config.schedules import ScheduleSettings
from actors.config.section import Clash
from actors.config.settings import Settings
from actors.config.triggers import QueueTrigger, TimeTrigger
from actors.model.masking import masked
from daemon.config.yaml_source import KeyPath

_HANDLER_KEYS: Final = {
    **{key: None for model in get_args(AnyHandler) for key in model.model_fields},
    "auth": {key: None for model in get_args(AnyAuth) for key in model.model_fields},
    "request": dict.fromkeys(RequestSettings.model_fields),
    "answer": dict.fromkeys(AnswerRules.model_fields),
}

_TAGS: Final = {
    tag
    for model in (*get_args(AnyHandler), *get_args(AnyAuth), QueueTrigger, TimeTrigger)
    for tag in get_args(model.model_fields["type"].annotation)
}
_NAMED: Final = {
    "schedules": dict.fromkeys(ScheduleSettings.model_fields),
    "triggers": dict.fromkeys((*QueueTrigger.model_fields, *TimeTrigger.model_fields)),
    "notifications": {
        **dict.fromkeys(NotificationSettings.model_fields),
        "webhook": dict.fromkeys(WebhookSettings.model_fields),
    },
}
"""The keys of an entry, for sections whose entries the operator names."""


def describe(
    error: ValidationError, tree: Mapping[str, Any], origins: Mapping[KeyPath, str]
) -> list[str]:
    """One line per problem. A problem in `defaults` is reported once, not for each queue."""
    lines = [_line(details, tree, origins) for details in error.errors(include_url=False)]
    return list(dict.fromkeys(lines))


def written_at(path: KeyPath, origins: Mapping[KeyPath, str]) -> KeyPath:
    """The key under which a queue's value was written: the queue's own, or the default's."""
    if path not in origins and path[:1] == ("queues",):
        shared = ("defaults", *path[2:])
        if shared in origins:
            return shared
    return path


def _line(details: ErrorDetails, tree: Mapping[str, Any], origins: Mapping[KeyPath, str]) -> str:
    path = _key_path(details, tree)
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, Clash):
        keys = [written_at((*path, *key.split(".")), origins) for key in cause.keys]
        written = [key for key in keys if key in origins]
        if path and written and all(key[: len(path)] != path for key in written):
            path = written[0][:-1]
        origin = ", ".join(dict.fromkeys(origins[key] for key in written))
        origin = origin or _nearest_origin(path, origins)
    else:
        path = written_at(path, origins)
        origin = _nearest_origin(path, origins)
    parts = (origin, ".".join(path), _message(details, path, origin))
    return ": ".join(part for part in parts if part)


def _key_path(details: ErrorDetails, tree: Any) -> KeyPath:
    """The keys as written; pydantic's path also names members of unions."""
    path: KeyPath = ()
    loc = details["loc"]
    for index, part in enumerate(loc):
        is_tag = part in _TAGS and details["type"] == "value_error"
        may_be_new = index == len(loc) - 1 and not is_tag
        if isinstance(tree, dict) and part not in tree and not may_be_new:
            continue
        if part == "[key]":
            continue
        tree = tree.get(part) if isinstance(tree, dict) else None
        path = (*path, str(part))
    return path


def _nearest_origin(path: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return ""


def _message(details: ErrorDetails, path: KeyPath, origin: str) -> str:
    context = details.get("ctx", {})
    given = details["input"]
    match details["type"]:
        case "extra_forbidden":
            suggestion = _suggestion(path)
            if not suggestion:
                return "no such key"
            if suggestion == ".".join(path):
                return "no such key for this type"
            if origin.startswith("FOREBAY_"):
                suggestion = "FOREBAY_" + suggestion.replace(".", "__").upper()
            return f"no such key; did you mean {suggestion}?"
        case "missing":
            return "must be given"
        case "literal_error" | "enum":
            return f"must be {context['expected']}, not {_shown(given, path)}"
        case "union_tag_invalid":
            return f"type must be one of {context['expected_tags']}, not {context['tag']!r}"
        case "union_tag_not_found":
            example = "QUEUE" if path[:1] == ("triggers",) else "file"
            return f"needs a type, as {{type: {'bearer' if path[-1] == 'auth' else example}}}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must hold keys and values, not {_shown(given, path)}"
        case "value_error":
            return str(context["error"])
        case _:
            return f"{details['msg'].replace('Input should', 'must')}, not {_shown(given, path)}"


def _shown(value: object, path: KeyPath) -> str:
    """A value as in YAML, shortened and without secrets."""
    visible = masked(value, path[-1] if path else "")
    text = json.dumps(visible, default=repr, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(path: KeyPath) -> str:
    """The key that was probably meant: a sibling of the unknown one, or any other."""
    *parents, key = path
    within: Any = _known_keys()
    if len(parents) > 1 and parents[0] in _NAMED:
        within, parents_below = _NAMED[parents[0]], parents[2:]
    elif parents[:1] == ["queues"]:
        parents_below = ["defaults", *parents[2:]]
    else:
        parents_below = parents
    for parent in parents_below:
        within = within.get(parent) or {}
    beside = get_close_matches(key, within, n=1)
    if beside:
        return ".".join((*parents, beside[0]))
    anywhere = {}
    for known in _all_paths(_known_keys()):
        anywhere[known[-1]] = anywhere["_".join(known)] = ".".join(known)
    close = get_close_matches(key, anywhere, n=1, cutoff=0.8)
    found = anywhere[close[0]] if close else ""
    if parents[:1] == ["queues"] and found.startswith("defaults."):
        # It exists elsewhere in the same queue.
        return ".".join((*parents[:2], found.removeprefix("defaults.")))
    return found


def _known_keys() -> dict[str, Any]:
    """All keys as a tree; the keys of a queue are under `defaults`."""
    keys = Settings().model_dump(exclude={"priorities"})
    keys["defaults"]["handler"] = _HANDLER_KEYS
    return {**keys, "priorities": {}}


def _all_paths(keys: Mapping[str, Any], parents: KeyPath = ()) -> Iterator[KeyPath]:
    for key, below in keys.items():
        yield (*parents, key)
        if isinstance(below, dict):
            yield from _all_paths(below, (*parents, key))
