"""Reads request bodies strictly, without type conversions.

Python's JSON reader would accept `NaN`, numbers beyond a float's range, UTF-16 and duplicate names;
pydantic would accept `true` for 1 and `"5"` for 5.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict

from forebay.strict_json import loads


class Body(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return loads(await self.body())
        except json.JSONDecodeError:
            raise
        except ValueError as problem:
            # The framework answers this error with "the body is not JSON".
            raise json.JSONDecodeError(str(problem), "", 0) from problem


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly
