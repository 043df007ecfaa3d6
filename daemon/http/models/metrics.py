"""The answers of /api/v2/metrics/. The names are those that operators of such pages know."""

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

_ENTRY: JsonDict = {
    "queue": "crm",
    "actionClass": "http",
    "flowName": "signup",
    "flowType": "push",
    "actionName": "welcome",
    "count": 1200,
    "oldestQueuedAt": "2026-01-31T12:00:00.000Z",
    "timestamp": "2026-01-31T12:12:00.000Z",
}


class FlowEntry(BaseModel):
    """Items of one flow and action of a queue that wait in one tier."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ENTRY]})

    queue: str
    actionClass: str = Field(description="The queue's handler: `http`, `python:module:function` …")
    flowName: str = Field(description="As the producer said; may be empty")
    flowType: str = Field(description="How the queue is emptied: `push`, `pull` or `stream`")
    actionName: str = Field(description="As the producer said; may be empty")
    count: int = Field(description="Items that wait; leased items are not counted")
    oldestQueuedAt: str | None = Field(description="When the oldest of them was enqueued")
    timestamp: str = Field(description="The time of these figures")


class Detailed(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "timestamp": _ENTRY["timestamp"],
                    "warm": [_ENTRY],
                    "cold": [],
                    "isPartial": False,
                }
            ]
        }
    )

    timestamp: str
    warm: list[FlowEntry]
    cold: list[FlowEntry]
    isPartial: bool = Field(description="There are more flows than are listed")


class ActionPlugin(BaseModel):
    actionClass: str
    plugin: str | None = Field(description="The distribution that provides it; null: none does")
    version: str | None
    queues: list[str]


class ActionPlugins(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "plugins": [
                        {
                            "actionClass": "http",
                            "plugin": "forebayd",
                            "version": "0.1.0",
                            "queues": ["crm"],
                        }
                    ]
                }
            ]
        }
    )

    plugins: list[ActionPlugin]


class RunningTask(BaseModel):
    """A batch leased by a worker or a consumer."""

    queue: str
    actionClass: str
    flowName: str
    actionName: str
    did: str = Field(description="The id of the batch's first item")
    count: int = Field(description="Items in the batch")
    startTime: str
    runningForMs: int
    appName: str = Field(description="host/queue/worker, or host/queue/consumer")
    heartbeatThresholdMs: int = Field(
        description="The lease: after this long without a renewal, others may lease the items"
    )


class Running(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "timestamp": _ENTRY["timestamp"],
                    "total": 1,
                    "tasks": [
                        {
                            "queue": "crm",
                            "actionClass": "http",
                            "flowName": "signup",
                            "actionName": "welcome",
                            "did": "0198c6f0-1d2e-7c3b-9a4f-0123456789ab-17",
                            "count": 500,
                            "startTime": "2026-01-31T12:11:59.300Z",
                            "runningForMs": 700,
                            "appName": "spark-7/crm/3",
                            "heartbeatThresholdMs": 50000,
                        }
                    ],
                }
            ]
        }
    )

    timestamp: str
    total: int = Field(description="Tasks in all; the longest running of them are listed")
    tasks: list[RunningTask]


class Rates(BaseModel):
    """Items per second over the last minute."""

    accepted: float
    delivered: float
    dead: float


class Series(BaseModel):
    """A queue's samples as columns of the same length, oldest first."""

    queue: str = Field(description="Empty: the daemon as a whole")
    at: list[int] = Field(description="Milliseconds since 1970")
    accepted: list[int] = Field(description="A total, as are the next two")
    delivered: list[int]
    dead: list[int]
    spooled: list[int] = Field(description="Held at that moment, as are the next four")
    scheduled: list[int]
    warm: list[int]
    cold: list[int]
    running: list[int]
    oldestAgeSeconds: list[int] = Field(description="Of what waits in warm or cold; 0: nothing")
    rates: Rates


class SpoolSeries(BaseModel):
    at: list[int]
    bytes: list[int] = Field(description="Of live runs in the journal")
    freeBytes: list[int] = Field(description="Room on its disk")
    maxBytes: int


class SpoolForecast(BaseModel):
    direction: str = Field(description="`full`, `empty`, `steady` or `unknown`")
    seconds: float | None = Field(description="Until then, at the present rate")
    bytesPerSecond: float = Field(description="How fast it fills; below 0 it empties")


class MetricsHistory(BaseModel):
    timestamp: str
    intervalSeconds: float = Field(description="Between samples, as they were taken")
    series: list[Series]
    queues: list[str] = Field(description="The queues that have samples")
    spool: SpoolSeries
    forecast: SpoolForecast
