"""Handlers with presets deliver to their vendors, over a real connection."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from actors.config.http import HttpHandler
from actors.model.outcomes import Failure, Report
from actors.ports.handler import DeliveryFailed
from daemon.handlers.http.handler import HttpDelivery
from tests.daemon.handlers.http.batches import Sending, a_slice
from tests.vendors.apis import Braze, Elasticsearch, GraphQL, HubSpot, Salesforce, Webhook
from tests.vendors.base import Seen, Vendor
from tests.vendors.handlers import handler_with
from tests.vendors.server import VendorServer
from tests.vendors.test_recorded_answers import word

KEYS = ["good", "bad", "busy", "fine"]
Payload = Callable[[str], Any]
VENDORS: dict[str, tuple[type[Vendor], str, Payload]] = {
    "salesforce-collections": (
        Salesforce,
        "/services/data/v61.0/composite/sobjects/Contact/Ext__c",
        lambda key: {"attributes": {"type": "Contact"}, "Ext__c": key},
    ),
    "hubspot-batch": (
        HubSpot,
        "/crm/v3/objects/contacts/batch/upsert",
        lambda key: {"email": key, "firstname": "Ann"},
    ),
    "braze-users": (Braze, "/users/track", lambda key: {"external_id": key, "age": 7}),
    "elasticsearch-bulk": (Elasticsearch, "/contacts/_bulk", lambda key: {"name": key}),
    "graphql": (
        GraphQL,
        "/graphql",
        lambda key: {"query": "mutation ($id: ID!) { touch(id: $id) }", "variables": {"id": key}},
    ),
}
has_requests = pytest.mark.skipif(
    "request" not in HttpHandler.model_fields, reason="http handlers have no request templates"
)


async def outcomes(opened: Sending, batch: list[str], payload: Payload) -> list[str]:
    bodies = [json.dumps(payload(key)).encode() for key in batch]
    try:
        report = await opened.send(a_slice(*bodies, keys=[key.encode() for key in batch]))
    except DeliveryFailed as failed:
        return [word(failed.failure)] * len(batch)
    found: list[str | Failure] = ["delivered"] * len(batch)
    for failed_items in report.failures:
        for at in range(len(batch)):
            if failed_items.bits >> at & 1:
                found[at] = failed_items.failure
    return [word(one) for one in found]


@has_requests
@pytest.mark.parametrize("preset", VENDORS)
async def test_each_item_has_its_outcome(preset: str) -> None:
    make, path, payload = VENDORS[preset]
    vendor = make()
    vendor.refuse(["bad"])
    vendor.be_busy(["busy"])
    with VendorServer(vendor) as server:
        handler = HttpDelivery("crm", handler_with(preset, server.url(path), timeout="1h"))
        several = handler.batch_items > 1
        # Braze reports no failures that pass.
        busy = "dead" if preset == "braze-users" else "retry" if several else "destination failed"
        opened = Sending(handler)
        try:
            found: list[str] = []
            for batch in [KEYS] if several else [[key] for key in KEYS]:
                found += await outcomes(opened, batch, payload)
            assert found == ["delivered", "dead", busy, "delivered"]
            vendor.will("unauthorized", "rate_limited", "malformed", "down")
            for _ in range(4):
                assert await outcomes(opened, ["good"], payload) == ["destination failed"]
        finally:
            await opened.sender.aclose()
    seen = vendor.seen()
    assert (seen["good"], seen["bad"]) == (Seen(accepted=1), Seen(refused=1))


async def test_a_webhook_takes_the_payload_alone() -> None:
    vendor = Webhook()
    with VendorServer(vendor) as server:
        settings = handler_with("webhook", server.url("/hooks/orders"), timeout="1h")
        opened = Sending(HttpDelivery("orders", settings))
        try:
            # A connection that is lost before an answer is replaced once.
            vendor.will("unauthorized", "rate_limited", "reset", "reset")
            for _ in range(3):
                assert (await opened.failure(a_slice(b'{"a": 1}'))).blames_destination
            item = a_slice(b'{"a": 1}')
            assert await opened.send(item) == Report()
            (item_id,) = vendor.seen()
            vendor.refuse([item_id])
            failure = await opened.failure(item)
            assert (failure.is_permanent, failure.status) == (True, 400)
        finally:
            await opened.sender.aclose()
    assert vendor.seen() == {item_id: Seen(accepted=1, refused=1)}
