"""The vendors' servers answer in the forms that the presets read, and record every item."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from daemon.handlers.http.answer import Answer
from tests.eventually import eventually_sync
from tests.vendors.apis import (
    Braze,
    Elasticsearch,
    GraphQL,
    HubSpot,
    Salesforce,
    TokenEndpoint,
    Webhook,
)
from tests.vendors.base import Rate, Seen, Tokens, Vendor
from tests.vendors.handlers import handler_with
from tests.vendors.server import VendorServer
from tests.vendors.test_recorded_answers import outcomes, word

SECRET = "whsec_" + base64.b64encode(b"x" * 24).decode()
Post = Callable[[httpx.Client, list[str]], httpx.Response]


@contextmanager
def serving(*vendors: Vendor) -> Iterator[httpx.Client]:
    with (
        VendorServer(*vendors) as server,
        httpx.Client(base_url=server.url(), timeout=60) as client,
    ):
        yield client


def to_salesforce(client: httpx.Client, keys: list[str], **more: Any) -> httpx.Response:
    records = [{"attributes": {"type": "Contact"}, "Ext__c": key} for key in keys]
    url = "/services/data/v61.0/composite/sobjects/Contact/Ext__c"
    return client.patch(url, json={"allOrNone": False, "records": records, **more})


def to_hubspot(client: httpx.Client, keys: list[str], traced: bool = True) -> httpx.Response:
    trace = [{"objectWriteTraceId": f"r-{at}"} if traced else {} for at in range(len(keys))]
    inputs = [
        {"idProperty": "email", "id": key, "properties": {"email": key}} | traces
        for key, traces in zip(keys, trace, strict=True)
    ]
    return client.post("/crm/v3/objects/contacts/batch/upsert", json={"inputs": inputs})


def to_braze(client: httpx.Client, keys: list[str]) -> httpx.Response:
    return client.post("/users/track", json={"attributes": [{"external_id": key} for key in keys]})


def to_elasticsearch(client: httpx.Client, keys: list[str]) -> httpx.Response:
    lines = [json.dumps(line) for key in keys for line in ({"index": {"_id": key}}, {"a": 1})]
    return client.post(
        "/contacts/_bulk",
        content="\n".join([*lines, ""]),
        headers={"Content-Type": "application/x-ndjson"},
    )


def to_graphql(client: httpx.Client, keys: list[str]) -> httpx.Response:
    (key,) = keys
    return client.post("/graphql", json={"query": "mutation …", "variables": {"id": key}})


def to_webhook(client: httpx.Client, keys: list[str], secret: str = SECRET) -> httpx.Response:
    (key,) = keys
    body, at = b'{"type": "order.created"}', str(int(time.time()))
    signed = f"{key}.{at}.".encode() + body
    digest = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256)
    headers = {"webhook-id": key, "webhook-timestamp": at}
    headers["webhook-signature"] = "v1,older v1," + base64.b64encode(digest).decode()
    return client.post("/hooks/orders", content=body, headers=headers)


VENDORS: list[tuple[str, Callable[[], Vendor], Post]] = [
    ("salesforce-collections", Salesforce, to_salesforce),
    ("hubspot-batch", HubSpot, to_hubspot),
    ("braze-users", Braze, to_braze),
    ("elasticsearch-bulk", Elasticsearch, to_elasticsearch),
    ("graphql", GraphQL, to_graphql),
    ("webhook", lambda: Webhook(SECRET), to_webhook),
]
every_vendor = pytest.mark.parametrize(
    "preset, make, post", VENDORS, ids=[preset for preset, _, _ in VENDORS]
)
KEYS = ["good", "bad", "busy", "fine"]


def understood(preset: str, response: httpx.Response, items: int) -> list[str]:
    headers = {name.lower(): value for name, value in response.headers.items()}
    answer = Answer(response.status_code, headers, response.content)
    return [word(one) for one in outcomes(preset, answer, items)]


@every_vendor
def test_each_item_has_its_outcome(preset: str, make: Callable[[], Vendor], post: Post) -> None:
    vendor = make()
    vendor.refuse(["bad"])
    vendor.be_busy(["busy"])
    several = handler_with(preset).batch_items > 1
    batches = [KEYS] if several else [[key] for key in KEYS]
    # Braze reports no failures that pass.
    busy = "dead" if preset == "braze-users" else "retry" if several else "destination failed"
    with serving(vendor) as client:
        found = [understood(preset, post(client, batch), len(batch)) for batch in batches]
        assert [one for batch in found for one in batch] == ["delivered", "dead", busy, "delivered"]
        assert vendor.seen() == {
            "good": Seen(accepted=1),
            "bad": Seen(refused=1),
            "busy": Seen(busy=1),
            "fine": Seen(accepted=1),
        }
        assert understood(preset, post(client, ["busy"]), 1) == ["delivered"]
    assert vendor.seen()["busy"] == Seen(accepted=1, busy=1)


@every_vendor
@pytest.mark.parametrize("act", ["malformed", "rate_limited", "unauthorized", "down"])
def test_faults_on_demand_are_failures_of_the_destination(
    preset: str, make: Callable[[], Vendor], post: Post, act: Any
) -> None:
    vendor = make()
    vendor.will(act)
    with serving(vendor) as client:
        found = understood(preset, post(client, ["good"]), 1)
        # A webhook's receiver says nothing that could be malformed.
        is_well = (preset, act) == ("webhook", "malformed")
        assert found == ["delivered" if is_well else "destination failed"]
        assert vendor.seen() == {}
        assert understood(preset, post(client, ["good"]), 1) == ["delivered"]


@every_vendor
def test_a_request_may_be_lost_before_or_after_it_is_carried_out(
    preset: str, make: Callable[[], Vendor], post: Post
) -> None:
    vendor = make()
    vendor.will("reset", "lose_answer")
    with serving(vendor) as client:
        for accepted in (0, 1):
            with pytest.raises(httpx.TransportError):
                post(client, ["good"])
            assert vendor.seen().get("good", Seen()) == Seen(accepted=accepted)
        post(client, ["good"])
    assert vendor.seen()["good"] == Seen(accepted=2)


def test_a_request_may_hang_without_stopping_others() -> None:
    vendor = Braze()
    vendor.will("hang")
    with VendorServer(vendor) as server:
        patience = httpx.Timeout(60, read=0.01)
        hasty = httpx.Client(base_url=server.url(), timeout=patience)
        with hasty as client, pytest.raises(httpx.ReadTimeout):
            to_braze(client, ["a"])
        eventually_sync(lambda: vendor.requests == 1)
        with httpx.Client(base_url=server.url(), timeout=60) as client:
            assert to_braze(client, ["a"]).status_code == 201
    assert vendor.requests == 2


@pytest.mark.parametrize(
    "vendor, post", [(Salesforce(), to_salesforce), (HubSpot(), to_hubspot), (Braze(), to_braze)]
)
def test_a_request_has_at_most_so_many_items(vendor: Vendor, post: Post) -> None:
    keys = [f"k{number}" for number in range(vendor.items_max + 1)]
    with serving(vendor) as client:
        assert post(client, keys).status_code == 400
        assert vendor.seen() == {}
        assert post(client, keys[1:]).status_code in (200, 201)
    assert len(vendor.seen()) == vendor.items_max


def test_requests_are_limited_per_window() -> None:
    vendor = Braze()
    vendor.rate = Rate(requests=2, seconds=3600)
    with serving(vendor) as client:
        assert [to_braze(client, ["a"]).status_code for _ in range(3)] == [201, 201, 429]
        headers = to_braze(client, ["a"]).headers
    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("2", "0")
    assert int(headers["X-RateLimit-Reset"]) > time.time()


def test_salesforce_rolls_back_if_asked_to() -> None:
    vendor = Salesforce()
    vendor.refuse(["bad"])
    with serving(vendor) as client:
        response = to_salesforce(client, ["good", "bad"], allOrNone=True)
        assert understood("salesforce-collections", response, 2) == ["retry", "dead"]
    assert vendor.seen() == {"bad": Seen(refused=1)}


def test_hubspot_refuses_a_request_without_trace_ids_as_a_whole() -> None:
    vendor = HubSpot()
    vendor.refuse(["bad"])
    with serving(vendor) as client:
        assert to_hubspot(client, ["good", "bad"], traced=False).status_code == 400
        assert to_hubspot(client, ["good", "good"]).status_code == 400
    assert vendor.seen() == {"bad": Seen(refused=1)}


def test_a_webhook_with_another_signature_is_refused() -> None:
    vendor = Webhook(SECRET)
    other = "whsec_" + base64.b64encode(b"y" * 24).decode()
    with serving(vendor) as client:
        assert to_webhook(client, ["a"], other).status_code == 401
        assert client.post("/hooks/orders", content=b"{}").status_code == 401
    assert vendor.seen() == {}


def test_tokens_are_issued_to_the_client_and_expire() -> None:
    tokens = Tokens(lifetime_s=3600)
    vendor, endpoint = Salesforce(tokens), TokenEndpoint(tokens)
    with serving(vendor, endpoint) as client:

        def ask(secret: str) -> httpx.Response:
            form = {"grant_type": "client_credentials", "client_id": "forebay"}
            return client.post("/oauth/token", data=form | {"client_secret": secret})

        assert (ask("wrong").status_code, ask("wrong").json()) == (401, {"error": "invalid_client"})
        assert to_salesforce(client, ["a"]).status_code == 401
        client.headers["Authorization"] = f"Bearer {ask('s3cret').json()['access_token']}"
        assert to_salesforce(client, ["a"]).status_code == 200
        tokens.expire_all()
        assert to_salesforce(client, ["a"]).status_code == 401
        basic = client.post(
            "/oauth/token", data={"grant_type": "client_credentials"}, auth=("forebay", "s3cret")
        )
        assert basic.json() == {
            "access_token": "token-2",
            "token_type": "Bearer",
            "expires_in": 3600,
        }
    assert (tokens.issued, vendor.seen()["a"]) == (2, Seen(accepted=1))
