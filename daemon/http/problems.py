"""Problems: the shape of every error answer (RFC 9457).

Routes raise `Problem`; errors of the actors (`Refused`, `StoreUnavailable`) are translated here.
The guard (guard.py) answers requests that failed because of a bug.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
import trio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from actors.config.section import BadSetting
from actors.model.refusals import DRAINING_RETRY_MS, UNAVAILABLE_RETRY_MS
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from forebay.errors import BadFrame, BadRun, Refused

log = structlog.get_logger()

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:forebay:problem:"
ERRORS_MAX: Final = 20
"""How many errors of one request are listed; a body of megabytes may have a million."""

STATUSES: Final[Mapping[str, int]] = {
    "BAD_FRAME": 400,
    "BAD_RUN": 422,
    "BAD_REQUEST": 422,
    "TOO_LARGE": 413,
    "NOT_FOUND": 404,
    "UNKNOWN_QUEUE": 404,
    "CONFLICT": 409,
    "LEASE_LOST": 409,
    "STAGE_OVER": 409,
    "QUEUE_FULL": 429,
    "DISK_FULL": 507,
    "DENIED": 403,
    "VERSION": 400,
    "UNAVAILABLE": 503,
    "DISK_ERROR": 503,
    "DRAINING": 503,
    "BUSY": 503,
    "TIMEOUT": 503,
    "INTERNAL": 500,
}
"""The HTTP status of each code of docs/protocol.md."""

EXAMPLES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("bad-request", "the body is not JSON: Expecting value"),
    401: ("unauthorized", "a token is needed: Authorization: Bearer ..."),
    403: ("forbidden", "this token may read, and not change"),
    404: ("not-found", "there is no queue crm"),
    405: ("method-not-allowed", "this address takes GET"),
    406: ("not-acceptable", "this address answers with application/json"),
    408: ("too-slow", "the request did not come within 30 s"),
    409: ("conflict", "there is a queue crm already"),
    410: ("gone", "this is over"),
    413: ("too-large", "a request has at most 2Mi"),
    415: ("unsupported-media-type", "the body must be application/json"),
    421: ("wrong-host", "this server is not example.org: see http.hosts"),
    422: ("invalid", "limit: Input should be less than or equal to 1000"),
    429: ("too-many-requests", "at most 200 requests a second"),
    500: (
        "internal",
        "unexpected error in the daemon: its log has the details under 5f1c03a9",
    ),
    503: ("unavailable", "the cold store did not answer within 10 s"),
    507: ("disk-full", "the disk has less than min_free_bytes"),
}


class ProblemDetails(BaseModel):
    """What went wrong, as RFC 9457 describes it."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str = Field(description="Which kind of problem, as a URN", examples=["about:blank"])
    title: str = Field(description="The kind of problem, in words")
    status: int = Field(description="The HTTP status")
    detail: str = Field(description="What is wrong with this request, in a sentence")
    instance: str | None = Field(default=None, description="The path that was asked for")
    code: str | None = Field(default=None, description="The code of the wire protocol, if any")
    field: str | None = Field(default=None, description="The invalid setting, if it is known")


class Problem(HTTPException):
    """An error answer. `slug` names its kind; the title comes from it.

    An HTTPException, because FastAPI passes those on from every stage of reading a request."""

    def __init__(
        self,
        status: int,
        detail: str,
        slug: str = "",
        *,
        extensions: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.slug = slug or EXAMPLES.get(status, ("problem", ""))[0]
        self.extensions = extensions or {}
        self.retry_after_s = retry_after_s


def problem_of(refused: Refused) -> Problem:
    """A refusal of the daemon as a problem."""
    retry_after_s = None
    if refused.retryable:
        retry_after_s = (refused.retry_after_ms or UNAVAILABLE_RETRY_MS) / 1000
    return Problem(
        STATUSES.get(refused.code, 422),
        refused.text,
        refused.code.lower().replace("_", "-"),
        extensions={"code": refused.code, **field_of(refused)},
        retry_after_s=retry_after_s,
    )


def field_of(refused: Refused) -> dict[str, str]:
    """The invalid key, if it is known: a form shows the problem next to it."""
    if not isinstance(refused, BadSetting) or not refused.field:
        return {}
    return {"field": refused.field}


def unavailable(problem: Exception) -> Problem:
    retry_after_s = UNAVAILABLE_RETRY_MS / 1000
    return Problem(503, str(problem), "unavailable", retry_after_s=retry_after_s)


def draining() -> Problem:
    text = "the daemon is shutting down"
    return Problem(503, text, "draining", retry_after_s=DRAINING_RETRY_MS / 1000)


def render(problem: Problem, path: str | None = None) -> Response:
    content = {
        "type": TYPE_PREFIX + problem.slug,
        "title": problem.slug.replace("-", " ").capitalize(),
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": path,
        **problem.extensions,
    }
    headers = dict(problem.headers or {})
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(problem.retry_after_s)))
    return JSONResponse(content, problem.status_code, headers, MEDIA_TYPE)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route: its own problems. openapi.py adds those of every route."""
    return {status: documented_one(status) for status in statuses}


def documented_one(status: int) -> dict[str, Any]:
    slug, detail = EXAMPLES[status]
    example = {
        "type": TYPE_PREFIX + slug,
        "title": slug.replace("-", " ").capitalize(),
        "status": status,
        "detail": detail,
    }
    described: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {
            MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}
        },
    }
    if status in (429, 503):
        described["headers"] = {
            "Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}
        }
    return described


def install(app: FastAPI) -> None:
    """Makes every failure of a request a problem."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if not isinstance(error, Problem):
            error = translated(error, request)
        return render(error, request.url.path)

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return render(of_validation(error), request.url.path)

    async def on_refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return render(problem_of(error), request.url.path)

    async def on_bytes(request: Request, error: Exception) -> Response:
        return render(Problem(422, str(error), "invalid"), request.url.path)

    async def on_store(request: Request, error: Exception) -> Response:
        if isinstance(error, StoreCorrupt):
            log.error("http.store_corrupt", path=request.url.path, error=str(error))
        return render(unavailable(error), request.url.path)

    async def on_slow(request: Request, _: Exception) -> Response:
        return render(unavailable(Exception("no answer in time")), request.url.path)

    async def on_bug(_: Request, __: Exception) -> Response:
        # The framework passes the exception on to the guard, which answers.
        return Unanswered()

    async def on_ending(request: Request, _: Exception) -> Response:
        # The spooler ends before its clients only when the daemon does.
        return render(draining(), request.url.path)

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(BadRun, on_bytes)
    app.add_exception_handler(BadFrame, on_bytes)
    app.add_exception_handler(StoreUnavailable, on_store)
    app.add_exception_handler(StoreCorrupt, on_store)
    app.add_exception_handler(trio.TooSlowError, on_slow)
    app.add_exception_handler(trio.BrokenResourceError, on_ending)
    app.add_exception_handler(trio.ClosedResourceError, on_ending)


class Unanswered(Response):
    """Sends nothing."""

    async def __call__(self, *_: object) -> None:
        return


def translated(error: HTTPException, request: Request) -> Problem:
    """A refusal of the framework as a problem."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return Problem(404, f"there is nothing at {request.url.path}", "not-found")
    if error.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow", "")
        return Problem(405, f"this address takes {allowed}", headers={"Allow": allowed})
    return Problem(error.status_code, str(error.detail), headers=headers)


def of_validation(error: RequestValidationError) -> Problem:
    """400 if the body is not JSON, 422 if it is JSON but invalid."""
    errors = [
        {
            "where": ".".join(str(part) for part in entry["loc"]),
            "what": str(entry["msg"]).removeprefix("Value error, "),
        }
        for entry in error.errors()[:ERRORS_MAX]
    ]
    first = errors[0] if errors else {"where": "request", "what": "is not valid"}
    for entry in error.errors():
        if entry["type"] == "json_invalid":
            return Problem(400, f"the body is not JSON: {entry['ctx']['error']}", "bad-request")
    text = f"{first['where']}: {first['what']}"
    return Problem(422, text, "invalid", extensions={"errors": errors})
