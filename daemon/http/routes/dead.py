"""Dead letters: list, group, show, edit, retry and delete them; jobs do it to many."""

from base64 import b64encode
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from daemon.http.access import Admin, Reader
from daemon.http.doors import Doors
from daemon.http.models.dead import (
    Chosen,
    DeadGroups,
    DeadLetter,
    DeadPage,
    DeadQuery,
    Done,
    GroupQuery,
    Job,
    JobId,
    JobList,
    NewPayload,
)
from daemon.http.models.items import ItemId
from daemon.http.problems import Problem, documented
from daemon.http.pushing import payload_of
from daemon.http.strict import StrictRoute

LETTERS = "/api/v2/dead-letters"


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(tags=["dead letters"], route_class=StrictRoute)
    _reading(router, doors)
    _many(router, doors)
    _one(router, doors)
    _jobs(router, doors)
    return router


def _reading(router: APIRouter, doors: Doors) -> None:
    @router.get(LETTERS, operation_id="listDeadLetters", responses=documented(422))
    async def find(query: Annotated[DeadQuery, Query()], who: Reader) -> DeadPage:
        """Lists dead letters, oldest first, one page at a time."""
        if query.payloads and not who.sees_payloads:
            raise Problem(403, "this token shows no payloads")
        fields = {"which": query.fields(), "limit": query.limit, "payloads": query.payloads}
        if query.cursor is not None:
            fields["cursor"] = query.cursor
        return DeadPage.model_validate(await doors.perform("dead.find", fields))

    @router.get(f"{LETTERS}/groups", operation_id="groupDeadLetters", responses=documented(422))
    async def groups(query: Annotated[GroupQuery, Query()], _: Reader) -> DeadGroups:
        """Counts dead letters by queue and error; a request reads a bounded number."""
        fields: dict[str, Any] = {"which": query.fields()}
        if query.cursor is not None:
            fields["cursor"] = query.cursor
        return DeadGroups.model_validate(await doors.perform("dead.groups", fields))

    @router.get(
        f"{LETTERS}/{{item_id}}", operation_id="showDeadLetter", responses=documented(404, 422)
    )
    async def show(item_id: ItemId, who: Reader) -> DeadLetter:
        """Shows a dead letter, with its payload if the client may see it."""
        fields = {"which": {"ids": [item_id]}, "limit": 1, "payloads": who.sees_payloads}
        found = (await doors.perform("dead.find", fields))["letters"]
        if not found:
            raise not_found(item_id)
        return DeadLetter.model_validate(found[0])


def _many(router: APIRouter, doors: Doors) -> None:
    @router.post(
        f"{LETTERS}/retry",
        status_code=202,
        operation_id="retryDeadLetters",
        responses=documented(422),
    )
    async def retry(chosen: Chosen, response: Response, _: Admin) -> Job:
        """Starts a job that retries the chosen dead letters."""
        return await start(doors, response, "dead.retry", chosen)

    @router.post(
        f"{LETTERS}/delete",
        status_code=202,
        operation_id="deleteDeadLetters",
        responses=documented(422),
    )
    async def delete(chosen: Chosen, response: Response, _: Admin) -> Job:
        """Starts a job that deletes the chosen dead letters."""
        return await start(doors, response, "dead.remove", chosen)


def _one(router: APIRouter, doors: Doors) -> None:
    @router.post(
        f"{LETTERS}/{{item_id}}/retry",
        operation_id="retryDeadLetter",
        responses=documented(404, 409, 422),
    )
    async def retry(item_id: ItemId, _: Admin) -> Done:
        """Retries a dead letter: due at once, attempts from 0, its errors kept. Refused (409) for a
        trigger's job whose items were given back."""
        await one(doors, "dead.retry", item_id)
        return Done(id=item_id, outcome="retried")

    @router.delete(
        f"{LETTERS}/{{item_id}}", operation_id="deleteDeadLetter", responses=documented(404, 422)
    )
    async def delete(item_id: ItemId, _: Admin) -> Done:
        """Deletes a dead letter. It counts as deleted, and stays in the queue's history if there
        is one."""
        await one(doors, "dead.remove", item_id)
        return Done(id=item_id, outcome="deleted")

    @router.put(
        f"{LETTERS}/{{item_id}}/payload",
        operation_id="editDeadLetter",
        responses=documented(404, 413, 422),
    )
    async def edit(item_id: ItemId, new: NewPayload, _: Admin) -> Done:
        """Replaces the payload; the id and all else stay."""
        payload = payload_of(new.payload, new.payload_b64)
        if payload is None:
            raise Problem(422, "give payload or payload_b64", "invalid")
        if len(payload) > doors.settings.socket.max_run_bytes:
            raise Problem(413, f"a payload has at most {doors.settings.socket.max_run_bytes} bytes")
        encoded = b64encode(payload).decode()
        await doors.perform("dead.edit", {"id": item_id, "payload_b64": encoded})
        return Done(id=item_id, outcome="edited")


def _jobs(router: APIRouter, doors: Doors) -> None:
    @router.get("/api/v2/jobs", operation_id="listJobs")
    async def jobs(_: Reader) -> JobList:
        """Lists the last jobs, the newest first."""
        return JobList.model_validate(await doors.perform("job.list", {}))

    @router.get("/api/v2/jobs/{job_id}", operation_id="showJob", responses=documented(404, 422))
    async def job(job_id: JobId, _: Reader) -> Job:
        """Shows the progress of a job."""
        return Job.model_validate(await doors.perform("job.show", {"id": job_id}))

    @router.delete(
        "/api/v2/jobs/{job_id}", operation_id="cancelJob", responses=documented(404, 422)
    )
    async def cancel(job_id: JobId, _: Admin) -> Job:
        """Ends a job after its current step; finished steps are not undone."""
        return Job.model_validate(await doors.perform("job.cancel", {"id": job_id}))


async def start(
    doors: Doors, response: Response, what: Literal["dead.retry", "dead.remove"], chosen: Chosen
) -> Job:
    which = chosen.which.fields() if chosen.which is not None else {}
    if chosen.ids:
        which["ids"] = chosen.ids
    if not which and not chosen.all:
        raise Problem(422, "choose by ids or which, or say all: true", "invalid")
    job = Job.model_validate(await doors.perform("job.start", {"what": what, "which": which}))
    response.headers["Location"] = f"/api/v2/jobs/{job.id}"
    return job


async def one(doors: Doors, op: str, item_id: str) -> None:
    fields = {"which": {"ids": [item_id]}, "limit": 10}
    if not (await doors.perform(op, fields))["done"]:
        raise not_found(item_id)


def not_found(item_id: str) -> Problem:
    return Problem(404, f"there is no dead letter {item_id}")
