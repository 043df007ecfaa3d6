"""Sends notices: posts them to a webhook (daemon/notify/webhook.py), or pushes them to a queue.

A push is answered when its run is on disk, like any other. Its run has the notice's id, so a
repeated push is stored once. While the daemon drains, nothing is pushed.
"""

from collections.abc import Mapping
from typing import Final

import trio

from actors.config.catalogue import Catalogue
from actors.config.observers import NotificationSettings, WebhookSettings
from actors.observers.notifier import NotSent, Ways, Webhook
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Append
from daemon.config.secrets import read_secrets
from daemon.errors import ConfigError
from forebay.encode import encode_run
from forebay.errors import RETRYABLE, Refused
from forebay.ids import parse_run_id
from forebay.run import read_head
from forebay.wire import Outcome

STORED_S: Final = 10.0
"""Time allowed for the disk, in addition to a full queue's `full_timeout`."""
FLOW: Final = "notifications"
NOTICE_HEADER: Final = "notice"


def make_ways(catalogue: Catalogue, spooler: SpoolerClient) -> Ways:
    return Ways(open_webhook, QueuePush(catalogue, spooler))


def check_webhooks(notifications: Mapping[str, NotificationSettings]) -> None:
    """Reads every secret and every `ca_file` once. Raises ConfigError if one cannot be used."""
    read_secrets(notifications, "notifications")
    for name, each in notifications.items():
        webhook, key = each.webhook, f"notifications.{name}.webhook"
        if webhook is None:
            continue
        try:
            webhook.check_secrets()
        except ValueError as problem:
            raise ConfigError(f"{key}: {problem}") from problem
        if webhook.ca_file is not None:
            from daemon.notify.webhook import make_tls

            make_tls(f"{key}.ca_file", webhook.ca_file)


def open_webhook(settings: WebhookSettings) -> Webhook:
    """Imports the HTTP client here, so that daemons without webhooks do not load it."""
    from daemon.notify.webhook import HttpWebhook

    return HttpWebhook(settings)


class QueuePush:
    def __init__(self, catalogue: Catalogue, spooler: SpoolerClient) -> None:
        self._catalogue = catalogue
        self._spooler = spooler

    async def __call__(self, queue: str, notice_id: str, payload: bytes) -> None:
        settings = self._catalogue.queue(queue)
        if settings is None:
            raise NotSent(f"there is no queue {queue}", is_final=True)
        data = encode_run(
            [payload],
            queue=queue,
            flow=FLOW,
            headers={NOTICE_HEADER: notice_id},
            run_id=parse_run_id(notice_id),
        )
        answer = _Answer()
        try:
            with trio.fail_after(settings.full_timeout + STORED_S):
                await self._spooler.send(Append(read_head(data), data, answer, 0))
                await answer.there.wait()
        except trio.TooSlowError:
            raise NotSent(f"{queue} did not store it in time") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise NotSent("the daemon stops", is_final=True) from None
        refused = answer.refused
        if refused is not None:
            raise NotSent(refused.text, is_final=is_final(refused))


class _Answer:
    """Receives the answer to one push."""

    def __init__(self) -> None:
        self.refused: Refused | None = None
        self.there = trio.Event()

    def put(self, _sequence: int, answer: Outcome | Refused) -> None:
        self.refused = answer if isinstance(answer, Refused) else None
        self.there.set()

    def flush(self) -> None:
        """Nothing to do: there is only one answer."""


def is_final(refused: Refused) -> bool:
    return refused.code == "DRAINING" or refused.code not in RETRYABLE
