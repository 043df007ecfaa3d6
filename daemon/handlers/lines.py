"""Items as JSON lines: one object an item, the form of files and of NDJSON bodies."""

import base64
import json
from typing import Any

from actors.messages import StoredRun
from actors.ports import Undeliverable
from forebay.errors import BadRun
from forebay.run import Run


def run_lines(stored: StoredRun, done: int) -> bytes:
    """The lines of a run's items, but for those whose bit in `done` is set."""
    run = Run(stored.head, stored.data)
    try:
        return b"".join(object_line(item) for item in run_objects(run, done))
    except BadRun as problem:
        raise Undeliverable(str(problem)) from problem


def run_objects(run: Run, done: int = 0) -> list[dict[str, Any]]:
    """The objects of a run's items; BadRun if it cannot be unpacked."""
    head = run.head
    shared: dict[str, Any] = {
        "attempt": head.attempt,
        "priority": head.priority,
        "flow": head.flow,
        "action": head.action,
        "headers": head.headers(),
    }
    items = zip(run.item_ids(), run.keys(), run.payloads(), strict=True)
    return [
        {
            "id": item_id,
            "queue": head.queue,
            "key": key.decode(errors="replace") if key else None,
            **shared,
            **_payload(payload),
        }
        for index, (item_id, key, payload) in enumerate(items)
        if not done >> index & 1
    ]


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_b64": base64.b64encode(payload).decode()}


def object_line(item: dict[str, Any]) -> bytes:
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
