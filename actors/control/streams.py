"""`stream.claim`, `stream.status`, `stream.drop` and `stream.list` (docs/protocol.md, "Claims").

It owns nothing: actors/tiers/streams.py owns the streams.
"""

from collections.abc import Mapping
from typing import Any

from actors.control.fields import Fields, Operation
from actors.model.refusals import bad_request
from actors.ports.tiers import Stream
from actors.spooler.client import Journaled
from actors.tiers.streams import Streams
from forebay.head import check_queue_name
from forebay.limits import CLAIM_ITEMS_DEFAULT, CLAIM_ITEMS_MAX, CONSUMER_BYTES_MAX


class StreamControl:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.operations: Mapping[str, Operation] = {
            "stream.claim": self._claim,
            "stream.status": self._status,
            "stream.drop": self._drop,
            "stream.list": self._list,
        }

    async def _claim(self, fields: Fields) -> dict[str, Any]:
        queue, consumer = read_consumer(fields)
        after = fields.number("after", None)
        items = fields.number("items", CLAIM_ITEMS_DEFAULT, 0, CLAIM_ITEMS_MAX)
        fields.end()
        if after is None:
            raise bad_request("after is missing: 0 at first")
        return claim_object(*await self._streams.claim(queue, consumer, after, items))

    async def _status(self, fields: Fields) -> dict[str, Any]:
        queue, consumer = read_consumer(fields)
        fields.end()
        stream, journal = await self._streams.status(queue, consumer)
        return {"acknowledged": stream.acknowledged, **claim_object(stream, journal)}

    async def _drop(self, fields: Fields) -> dict[str, Any]:
        queue, consumer = read_consumer(fields)
        fields.end()
        return {"released": await self._streams.drop(queue, consumer)}

    async def _list(self, fields: Fields) -> dict[str, Any]:
        chosen = fields.text_or_none("queue")
        fields.end()
        return {
            "streams": [
                {
                    "queue": queue,
                    "consumer": consumer,
                    "acknowledged": stream.acknowledged,
                    **claim_object(stream, journal),
                }
                for queue, consumer, stream, journal in await self._streams.overview(chosen)
            ]
        }


def read_consumer(fields: Fields) -> tuple[str, str]:
    queue, consumer = fields.text("queue"), fields.text("consumer")
    check_queue_name(queue)
    if len(consumer.encode(errors="replace")) > CONSUMER_BYTES_MAX:
        raise bad_request(f"consumer has at most {CONSUMER_BYTES_MAX} bytes")
    return queue, consumer


def claim_object(stream: Stream, journal: Journaled) -> dict[str, Any]:
    """The open claim, and the backlog behind it: in cold, in the journal, and between them."""
    between = max(0, journal.handed_over - stream.taken)
    return {
        "claim": stream.claim,
        "rows": stream.rows,
        "items": stream.items,
        "bytes": stream.bytes,
        "backlog": stream.waiting + journal.held + between,
    }
