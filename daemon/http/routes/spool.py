"""The spool: how full the journal and its disk are."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from daemon.http.access import Reader
from daemon.http.doors import Doors


class Spool(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "runs": 310,
                    "bytes": 80740352,
                    "max_bytes": 1073741824,
                    "fill": 0.075,
                    "disk_bytes": 134217728,
                    "chunks": 2,
                    "reader_offset": 67108864,
                    "writer_offset": 147849216,
                    "memory_runs": 64,
                    "memory_bytes": 16777216,
                    "free_bytes": 53687091200,
                    "min_free_bytes": 268435456,
                    "spare_chunks": 2,
                    "quarantine_bytes": 0,
                    "durability": "fsync",
                    "disk_is_low": False,
                }
            ]
        }
    )

    runs: int = Field(description="Runs that are not settled")
    bytes: int = Field(description="Bytes of these runs")
    max_bytes: int
    fill: float = Field(description="bytes of max_bytes, 0 to 1")
    disk_bytes: int = Field(description="Bytes of the chunks on disk")
    chunks: int
    reader_offset: int
    writer_offset: int
    memory_runs: int = Field(description="Waiting runs that are also kept in memory")
    memory_bytes: int
    free_bytes: int = Field(description="Free bytes on the disk")
    min_free_bytes: int = Field(description="New work is refused below this many free bytes")
    spare_chunks: int
    quarantine_bytes: int = Field(description="Bytes of damaged data set aside")
    durability: str
    disk_is_low: bool


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["spool"])

    @router.get("/spool", operation_id="showSpool")
    async def show(_: Reader) -> Spool:
        """Shows how full the journal is."""
        settings = doors.settings.spool
        found = (await doors.report())["spool"]
        return Spool.model_validate(
            found
            | {
                "max_bytes": settings.max_bytes,
                "fill": found["bytes"] / settings.max_bytes,
                "min_free_bytes": settings.min_free_bytes,
                "durability": settings.durability,
                "disk_is_low": doors.tiers.spooler.disk_is_low,
            }
        )

    return router
