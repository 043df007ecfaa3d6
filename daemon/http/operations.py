"""The routes of the operations, made from their table (actors/control/table.py).

Fields in the path are path parameters. The other fields of GET and DELETE, and those that the route
names, are query parameters; a field that is a group of fields is spread over them. All others are
members of the body, which is read strictly.
"""

import inspect
from collections.abc import Awaitable, Callable
from string import Formatter
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo
from starlette.responses import JSONResponse

from actors.control.operation import Http, Operation, paragraphs
from actors.control.table import OPERATIONS
from daemon.http.access import Admin, Reader
from daemon.http.doors import Doors
from daemon.http.problems import documented
from daemon.http.strict import Body, StrictRoute

WITHOUT_BODY: Final = ("GET", "DELETE")
BODY: Final = "body"
NO_CONTENT: Final = 204

Endpoint = Callable[..., Awaitable[Response]]


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(route_class=StrictRoute)
    for operation in OPERATIONS.values():
        http = operation.about.http
        if http is not None:
            router.add_api_route(
                http.path,
                _endpoint(doors, operation, http),
                methods=[http.method],
                status_code=http.status,
                operation_id=operation_id(operation),
                response_model=operation.answer(),
                responses=documented(*http.errors),
                tags=[operation.about.group],
                summary=paragraphs(operation)[0].rstrip("."),
                description="\n\n".join(paragraphs(operation)),
            )
    return router


def operation_id(operation: type[Operation]) -> str:
    """The class's name in camel case: `pauseQueue`."""
    return operation.__name__[0].lower() + operation.__name__[1:]


def _endpoint(doors: Doors, operation: type[Operation], http: Http) -> Endpoint:
    in_path = {name for _, name, _, _ in Formatter().parse(http.path) if name}
    has_body = http.method not in WITHOUT_BODY
    in_body: dict[str, FieldInfo] = {}
    groups: dict[str, tuple[str, ...]] = {}
    parameters: list[inspect.Parameter] = []
    for name, field in operation.model_fields.items():
        if name in in_path:
            parameters.append(_parameter(name, field, Path))
        elif has_body and name not in http.query:
            in_body[name] = field
        elif (group := _group(field)) is not None:
            groups[name] = tuple(group.model_fields)
            parameters += [_parameter(n, f, Query) for n, f in group.model_fields.items()]
        else:
            parameters.append(_parameter(name, field, Query))
    if in_body:
        parameters.append(_plain(BODY, _body(operation, in_body)))
    parameters.append(_plain("who", Reader if operation.about.role == "read" else Admin))

    async def endpoint(**given: Any) -> Response:
        del given["who"]
        body: BaseModel | None = given.pop(BODY, None)
        fields = dict(body.model_dump(exclude_unset=True)) if body is not None else {}
        for group, names in groups.items():
            fields[group] = {name: given.pop(name) for name in names}
        answer = await doors.perform(operation.about.name, fields | given)
        if http.status == NO_CONTENT:
            return Response(status_code=NO_CONTENT)
        return JSONResponse(answer, http.status)

    # FastAPI reads the signature: required parameters first, as Python wants them.
    parameters.sort(key=lambda one: one.default is not inspect.Parameter.empty)
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return endpoint


def _parameter(name: str, field: FieldInfo, place: Any) -> inspect.Parameter:
    about = place(description=field.description, examples=field.examples)
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else default,
        annotation=Annotated[field.annotation, *field.metadata, about],
    )


def _plain(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _group(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a group of fields."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _body(operation: type[Operation], fields: dict[str, FieldInfo]) -> type[BaseModel]:
    example = {n: value for n, value in operation.about.example.items() if n in fields}
    members: dict[str, Any] = {name: (field.annotation, field) for name, field in fields.items()}
    model = create_model(f"{operation.__name__}Body", __base__=Body, **members)
    model.model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [example]}
    )
    model.model_rebuild(force=True)
    return model
