"""Receipts, and the operations on writes (docs/protocol.md, "STAGE, SEAL, PUBLISH, ABORT").

Decisions are made and carried out in actors/writes/. The owners know the outcomes of a write's
items: the journals of those that they hold, the cold store of the rest. A receipt adds them up.
Owns nothing; every ten minutes it makes both stores forget receipts that are too old.
"""

from collections.abc import Mapping
from typing import Any, Final

import structlog
import trio

from actors.control.fields import LIMIT_MAX, Fields, Operation
from actors.model.refusals import bad_request, not_found
from actors.ports.tiers import StoreUnavailable
from actors.spooler.messages import ForgetWrites, ListWrites
from actors.tiers.tiers import Tiers
from actors.writes.writes import Writes
from forebay.limits import APP_BYTES_MAX, VERSION_MAX, WRITE_ID_BYTES
from forebay.stage_frames import RESERVED

log = structlog.get_logger()

FORGET_S: Final = 600.0
STAGES_MAX: Final = 100_000


class Receipts:
    def __init__(self, tiers: Tiers, writes: Writes) -> None:
        self._spooler = tiers.spooler.client
        self._cold = tiers.cold
        self._receipt_ttl_s = tiers.spooler.settings.receipt_ttl
        self._now_ms = tiers.now_ms
        self._writes = writes
        self.operations: Mapping[str, Operation] = {
            "stage.seal": self._seal,
            "stage.drop": self._drop,
            "write.publish": self._publish,
            "write.abort": self._abort,
            "write.list": self._list,
            "receipt.show": self._show,
        }

    async def run(self) -> None:
        """Forgets old receipts from time to time; never returns."""
        while True:
            await trio.sleep(FORGET_S)
            await self._forget(self._now_ms() - round(self._receipt_ttl_s * 1000))

    async def _forget(self, before_ms: int) -> None:
        gone: list[bytes] = []
        try:
            gone = await self._spooler.ask(ForgetWrites(before_ms))
            await self._cold.forget_receipts(gone)
            await self._writes.forget(self._now_ms() - before_ms)
        except StoreUnavailable as problem:
            # They are a few bytes each and can no longer be asked for.
            log.warning("receipts.not_forgotten", writes=len(gone), error=str(problem))

    async def _seal(self, fields: Fields) -> dict[str, Any]:
        write, stage = identifier(fields, "write"), identifier(fields, "stage")
        runs, items = fields.number("runs", 0), fields.number("items", 0)
        fields.end()
        await self._writes.seal(write, stage, runs, items)
        return {"write": write.hex(), "stage": stage.hex(), "runs": runs, "items": items}

    async def _drop(self, fields: Fields) -> dict[str, Any]:
        write, stage = identifier(fields, "write"), identifier(fields, "stage")
        fields.end()
        items = await self._writes.drop(write, stage)
        return {"write": write.hex(), "stage": stage.hex(), "items": items}

    async def _publish(self, fields: Fields) -> dict[str, Any]:
        write = identifier(fields, "write")
        stages = tuple(parse_id("stages", text) for text in fields.texts("stages", STAGES_MAX))
        app, version = fields.text_or_none("app"), fields.number("version", None, 0, VERSION_MAX)
        fields.end()
        if (app is None) is not (version is None):
            raise bad_request("app and version come together, or not at all")
        if app is not None and not 0 < len(app.encode()) <= APP_BYTES_MAX:
            raise bad_request(f"app has 1 to {APP_BYTES_MAX} bytes")
        published = await self._writes.publish(write, stages, app, version)
        return {
            "outcome": published.outcome,
            "write": None if published.write is None else published.write.hex(),
            "items": published.items,
            "published_ms": published.published_ms,
        }

    async def _abort(self, fields: Fields) -> dict[str, Any]:
        write = identifier(fields, "write")
        fields.end()
        ended = await self._writes.abort(write)
        return {"outcome": ended.outcome, "items": ended.items}

    async def _list(self, fields: Fields) -> dict[str, Any]:
        also_over, chosen = fields.flag("all"), fields.text_or_none("write")
        limit = fields.number("limit", LIMIT_MAX, 1, LIMIT_MAX)
        fields.end()
        write = None if chosen is None else parse_id("write", chosen)
        found: dict[str, Any] = await self._spooler.ask(ListWrites(also_over, write, limit))
        return found

    async def _show(self, fields: Fields) -> dict[str, Any]:
        write = identifier(fields, "write")
        fields.end()
        # The cold store's part first: items that move there meanwhile count as pending, not lost.
        in_cold = await self._cold.receipt(write)
        found = await self._writes.receipt(write)
        if found is None:
            raise not_found(f"receipt {write.hex()}")
        ends = {
            "delivered": found.delivered + in_cold.delivered,
            "dead": in_cold.dead,
            "dropped": found.dropped,
            "deleted": found.deleted + in_cold.deleted,
            "lost": found.lost + in_cold.lost,
        }
        return {
            "write": write.hex(),
            "published_ms": found.published_ms,
            "app": found.app,
            "version": found.version,
            "queues": list(found.queues),
            "accepted": found.accepted,
            **ends,
            # For keyed queues; the last two are among the deleted ones.
            "updated": in_cold.updated,
            "ignored": in_cold.ignored,
            "conflict": in_cold.conflict,
            # Another daemon's part may count twice for a moment, after it was killed.
            "pending": max(0, found.accepted - sum(ends.values())),
        }


def identifier(fields: Fields, name: str) -> bytes:
    return parse_id(name, fields.text(name))


def parse_id(name: str, text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != WRITE_ID_BYTES:
        raise bad_request(
            f"{name}: an id has {2 * WRITE_ID_BYTES} hexadecimal digits, not {text[:60]!r}"
        )
    if found in RESERVED:
        raise bad_request(f"{name}: id {text} is reserved")
    return found
