"""/openapi.json: FastAPI's description of the routes, plus the problems common to all."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from daemon.http.problems import ProblemDetails, documented_one

OF_ALL: Final = (403, 421, 429, 500, 503)
METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})


def describe(app: FastAPI) -> dict[str, Any]:
    """Made once, at the first request."""
    if app.openapi_schema is None:
        described = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            summary=app.summary,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        add_problems(described)
        app.openapi_schema = described
    return app.openapi_schema


def add_problems(described: dict[str, Any]) -> None:
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = ProblemDetails.model_json_schema()
    for operations in described["paths"].values():
        for method, operation in operations.items():
            if method in METHODS:
                responses = operation["responses"]
                for status in statuses_of(operation):
                    responses.setdefault(str(status), documented_one(status))
                if "422" in responses:
                    responses["422"] = documented_one(422)


def statuses_of(operation: dict[str, Any]) -> tuple[int, ...]:
    """The problems that come from the guard around a route."""
    statuses: tuple[int, ...] = OF_ALL
    if operation.get("security"):
        statuses = (401, *statuses)
    if "requestBody" in operation:
        statuses = (400, 408, 413, *statuses)
    return statuses
