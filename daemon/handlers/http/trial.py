"""Shows the requests of a batch, and what the destination answers if they are sent."""

from actors.model.masking import MASK, is_secret, masked_address
from actors.model.outcomes import Failure
from actors.model.secret_values import SECRET_VALUES
from actors.ports.handler import Trial, TriedItem, TriedRequest
from daemon.handlers.http.answer import Answer, Understood, text_of
from daemon.handlers.http.request import HttpContent, HttpRequest, Target
from daemon.handlers.http.sender import HttpSender


class Trying:
    def __init__(self, sender: HttpSender, target: Target, hidden: tuple[str, ...]) -> None:
        """`hidden`: the names of headers that are added when a request is sent, and are secret."""
        self._sender = sender
        self._target = target
        self._hidden = hidden

    async def run(self, content: HttpContent, *, is_sent: bool) -> Trial:
        requests: list[TriedRequest] = []
        items: list[TriedItem] = []
        for request in content.requests:
            if is_sent:
                answer = await self._sender.ask(request)
                requests.append(self._shown(request, answer))
                items += _outcomes(request, self._sender.judge(request, answer))
            else:
                requests.append(self._shown(request, None))
                items += [TriedItem(item_id, "ready") for item_id in request.ids]
        return Trial(tuple(requests), (*items, *_rejected(content)))

    def _shown(self, request: HttpRequest, answer: Answer | Failure | None) -> TriedRequest:
        line, *lines = request.head.decode("latin-1").splitlines()
        method, path, _ = line.split(" ")
        headers = dict(one.split(": ", 1) for one in lines)
        shown = {name: _masked(name, value) for name, value in headers.items()}
        return TriedRequest(
            method,
            SECRET_VALUES.masked(masked_address(f"{self._target.destination}{path}")),
            shown | dict.fromkeys(self._hidden, MASK),
            request.body,
            tuple(request.ids),
            None if answer is None else answer.status,
            text_of(answer) if isinstance(answer, Answer) else None,
        )


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


def _masked(header: str, value: str) -> str:
    hides = is_secret(header.lower().replace("-", "_"))
    return MASK if hides else SECRET_VALUES.masked(value)
