"""Shows the requests of a batch, and what the destination answers if they are sent."""

from actors.model.masking import MASK, is_secret, masked_address
from actors.model.outcomes import Failure
from actors.ports.handler import Trial, TriedItem, TriedRequest
from daemon.handlers.http.answer import Answer, Understood, text_of
from daemon.handlers.http.request import HttpContent, HttpRequest, Target
from daemon.handlers.http.sender import HttpSender


async def try_requests(
    sender: HttpSender, target: Target, content: HttpContent, *, is_sent: bool
) -> Trial:
    requests: list[TriedRequest] = []
    items: list[TriedItem] = []
    for request in content.requests:
        if not is_sent:
            requests.append(_shown(target, request, None))
            items += [TriedItem(item_id, "ready") for item_id in request.ids]
            continue
        answer = await sender.ask(request)
        requests.append(_shown(target, request, answer))
        items += _outcomes(request, sender.judge(request, answer))
    return Trial(tuple(requests), (*items, *_rejected(content)))


def _outcomes(request: HttpRequest, found: Understood | Failure) -> list[TriedItem]:
    if isinstance(found, Failure):
        return [_failed(item_id, found) for item_id in request.ids]
    return [
        _failed(item_id, found.failures[at])
        if at in found.failures
        else TriedItem(item_id, "delivered")
        for at, item_id in enumerate(request.ids)
    ]


def _failed(item_id: str, failure: Failure) -> TriedItem:
    return TriedItem(item_id, "refused" if failure.is_permanent else "retry", failure.text)


def _rejected(content: HttpContent) -> list[TriedItem]:
    return [
        TriedItem(f"{one.order}-{one.bits:b}", "refused", one.failure.text)
        for one in content.rejected
    ]


def _shown(target: Target, request: HttpRequest, answer: Answer | Failure | None) -> TriedRequest:
    line, *lines = request.head.decode("latin-1").splitlines()
    method, path, _ = line.split(" ")
    headers = dict(one.split(": ", 1) for one in lines)
    return TriedRequest(
        method,
        masked_address(f"{target.destination}{path}"),
        {name: MASK if _hides(name) else value for name, value in headers.items()},
        request.body,
        tuple(request.ids),
        answer.status if isinstance(answer, Answer | Failure) else None,
        text_of(answer) if isinstance(answer, Answer) else None,
    )


def _hides(header: str) -> bool:
    return is_secret(header.lower().replace("-", "_"))
