"""Streams: consumers that read a queue as a stream claim its items, and acknowledge claims.

It owns nothing: actors/tiers/streams.py owns the streams.
"""

from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, ConfigDict, Field

from actors.control.actors import Actors
from actors.control.operation import About, Operation, QueueName, View
from actors.ports.tiers import Stream
from actors.spooler.client import Journaled
from forebay.errors import Refused
from forebay.limits import CLAIM_ITEMS_DEFAULT, CLAIM_ITEMS_MAX, CONSUMER_BYTES_MAX, TIME_MS_MAX


def _short(consumer: str) -> str:
    if len(consumer.encode(errors="replace")) > CONSUMER_BYTES_MAX:
        raise ValueError(f"must have at most {CONSUMER_BYTES_MAX} bytes")
    return consumer


Consumer = Annotated[
    str,
    AfterValidator(_short),
    Field(description="The consumer's name.", min_length=1, examples=["lake"]),
]

CLAIM_EXAMPLE: Final[dict[str, Any]] = {
    "claim": 4,
    "rows": 12,
    "items": 12000,
    "bytes": 1450000,
    "backlog": 88000,
}


class Claim(View):
    """A consumer's open claim, and the backlog behind it."""

    model_config = ConfigDict(json_schema_extra={"examples": [CLAIM_EXAMPLE]})

    claim: int | None = Field(description="The number of the open claim; null: none is open.")
    rows: int = Field(description="How many rows it has; FETCH reads them by their numbers.")
    items: int
    bytes: int
    backlog: int = Field(description="Items of the queue that no consumer has claimed.")


class StreamStatus(Claim):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"acknowledged": 3, **CLAIM_EXAMPLE}]}
    )

    acknowledged: int = Field(description="The number of the last acknowledged claim.")


class StreamOfQueue(StreamStatus):
    """A consumer that reads a queue as a stream."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"queue": "crm", "consumer": "lake", "acknowledged": 3, **CLAIM_EXAMPLE}]
        }
    )

    queue: str
    consumer: str


class StreamList(View):
    streams: list[StreamOfQueue]


class Released(View):
    model_config = ConfigDict(json_schema_extra={"examples": [{"released": 12000}]})

    released: int = Field(description="How many claimed items wait again.")


class ListStreams(Operation):
    """List the consumers that read queues as streams, and the progress of each.

    A consumer claims items, reads them, and acknowledges the claim by making the next one. While a
    queue has a consumer, its items wait for it, and its handler gets none. A consumer whose query
    is gone keeps its claim and its queue until it is removed.
    """

    about: ClassVar = About("streams.ls", role="read", example={})

    queue: Annotated[str | None, Field(description="Only this queue.")] = None

    async def perform(self, actors: Actors) -> StreamList:
        found = await actors.tiers.streams.overview(self.queue)
        return StreamList(
            streams=[
                StreamOfQueue(
                    queue=queue,
                    consumer=consumer,
                    acknowledged=stream.acknowledged,
                    **_claim(stream, journal),
                )
                for queue, consumer, stream, journal in found
            ]
        )


class ClaimStream(Operation):
    """Acknowledge a consumer's claim, and make the next one.

    `after` is the last claim that the consumer has read completely: it is acknowledged, and its
    items are delivered. If a later claim is open already, it is answered unchanged. A claim is
    durable when it is answered, and stays until it is acknowledged or the consumer is removed.
    """

    about: ClassVar = About(
        "streams.claim",
        role="consume",
        example={"queue": "crm", "consumer": "lake", "after": 0},
        has_command=False,
    )

    queue: QueueName
    consumer: Consumer
    after: Annotated[
        int, Field(description="The claim that is acknowledged; 0 at first.", ge=0, le=TIME_MS_MAX)
    ]
    items: Annotated[
        int,
        Field(
            description="About how many items the next claim has; 0: none is made.",
            ge=0,
            le=CLAIM_ITEMS_MAX,
        ),
    ] = CLAIM_ITEMS_DEFAULT

    async def perform(self, actors: Actors) -> Claim:
        stream, journal = await actors.tiers.streams.claim(
            self.queue, self.consumer, self.after, self.items
        )
        return Claim(**_claim(stream, journal))


class ShowStream(Operation):
    """Show a consumer's progress. A consumer that is not known has acknowledged nothing."""

    about: ClassVar = About(
        "streams.show", role="consume", example={"queue": "crm", "consumer": "lake"}
    )

    queue: QueueName
    consumer: Consumer

    async def perform(self, actors: Actors) -> StreamStatus:
        stream, journal = await actors.tiers.streams.status(self.queue, self.consumer)
        return StreamStatus(acknowledged=stream.acknowledged, **_claim(stream, journal))


class RemoveStream(Operation):
    """Forget a consumer. The items of its open claim wait again, in their old place.

    Use it when the consumer's query is gone for good, or restarts with an empty checkpoint. A query
    that continues with its old checkpoint is refused, and others read again what it had read and
    not acknowledged. When the queue has no other consumer, its handler gets its items.
    """

    about: ClassVar = About(
        "streams.rm",
        role="consume",
        example={"queue": "crm", "consumer": "lake"},
        asks="Remove the consumer {consumer} of {queue}, and give its claimed items back?",
        done="{consumer} of {queue} removed: {released} items given back",
    )

    queue: QueueName
    consumer: Consumer

    async def perform(self, actors: Actors) -> Released:
        streams = actors.tiers.streams
        if not await streams.exists(self.queue, self.consumer):
            raise Refused("NOT_FOUND", f"{self.queue} has no consumer {self.consumer}")
        return Released(released=await streams.drop(self.queue, self.consumer))


def _claim(stream: Stream, journal: Journaled) -> dict[str, Any]:
    """The backlog is in cold, in the journal, and between them."""
    between = max(0, journal.handed_over - stream.taken)
    return {
        "claim": stream.claim,
        "rows": stream.rows,
        "items": stream.items,
        "bytes": stream.bytes,
        "backlog": stream.waiting + journal.held + between,
    }


OPERATIONS: Final = (ListStreams, ClaimStream, ShowStream, RemoveStream)
