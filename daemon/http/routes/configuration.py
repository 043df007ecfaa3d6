"""The configuration in force, without secrets.

Settings as read at the start; queues, which can be changed at run time, as they are now.
"""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from actors.model.masking import MASK
from daemon.http.access import Reader
from daemon.http.doors import Doors


class Configuration(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"version": "0.1.0", "settings": {"spool": {"max_bytes": "1Gi"}, "queues": {}}}
            ]
        }
    )

    version: str = Field(description="Of the daemon")
    settings: dict[str, Any] = Field(
        description="The keys of etc/forebay.yaml; sizes and durations as people write them"
    )


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["configuration"])

    @router.get("/configuration", operation_id="showConfiguration")
    async def show(_: Reader) -> Configuration:
        """All settings in force; secrets are shown as `***`."""
        from importlib.metadata import version

        settings = doors.settings.shown()
        settings["priorities"] = dict(doors.catalogue.priorities)
        settings["queues"] = {
            name: doors.catalogue.describe(name)["settings"] for name in doors.catalogue.names()
        }
        for schedule in (*settings["schedules"].values(), *settings["triggers"].values()):
            # A client that may see payloads sees them with the schedule.
            if "payload" in schedule:
                schedule["payload"] = MASK
        return Configuration(version=version("forebayd"), settings=settings)

    return router
