"""A daemon, a preset and the vendor's API, with everything that goes wrong in a night.

The API refuses items, is busy, limits rates, hangs, breaks connections after it has taken a
request, answers nonsense and forgets tokens; the daemon is killed on the way. In the end the API's
own record and the daemon's books agree on every item.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forebay import connect
from forebay.head import read_head
from forebay.run import Run, encode_run
from tests.daemon.cli.commands import HANG_S, Host, running
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
from tests.vendors.base import Act, Tokens, Vendor
from tests.vendors.server import VendorServer

ITEMS = 10_000
RUN_ITEMS = 500
SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQt"
TROUBLE: tuple[Act, ...] = (
    "rate_limited",
    "lose_answer",
    "reset",
    "malformed",
    "unauthorized",
    "down",
)


@dataclass(slots=True)
class Case:
    preset: str
    vendor: Vendor
    path: str
    request: dict[str, Any] | None = None
    trouble: tuple[Act, ...] = TROUBLE
    tokens: Tokens | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def handler(self, server: VendorServer) -> dict[str, Any]:
        given: dict[str, Any] = {"preset": self.preset, "url": server.url(self.path), **self.more}
        given["timeout"] = "5s"
        if self.request is not None:
            given["request"] = self.request
        if self.tokens is not None:
            given["auth"] = {
                "type": "oauth2",
                "token_url": server.url("/oauth/token"),
                "client_id": "forebay",
                "client_secret": {"env": "CRM_SECRET"},
            }
        return given


def case_of(name: str) -> Case:
    tokens = Tokens()
    match name:
        case "salesforce":
            item = {"attributes": {"type": "Contact"}, "Ext__c": "{{ key }}"}
            path = "/services/data/v61.0/composite/sobjects/Contact/Ext__c"
            vendor: Vendor = Salesforce(tokens)
            return Case("salesforce-collections", vendor, path, {"item": item}, tokens=tokens)
        case "hubspot":
            path = "/crm/v3/objects/contacts/batch/upsert"
            return Case("hubspot-batch", HubSpot(tokens), path, tokens=tokens)
        case "braze":
            item = {"external_id": "{{ key }}"}
            return Case("braze-users", Braze(tokens), "/users/track", {"item": item}, tokens=tokens)
        case "elasticsearch":
            path = "/contacts/_bulk"
            return Case("elasticsearch-bulk", Elasticsearch(tokens), path, tokens=tokens)
        case "graphql":
            body = {"query": "mutation …", "variables": {"id": "{{ key }}"}}
            return Case("graphql", GraphQL(tokens), "/graphql", {"body": body}, tokens=tokens)
        case "webhook":
            # Any 2xx of a webhook is a delivery, so nonsense would be one.
            trouble = tuple(act for act in TROUBLE if act != "malformed")
            auth = {"type": "hmac", "scheme": "standard-webhooks", "secret": {"env": "HOOK_SECRET"}}
            more = {"auth": auth}
            return Case("webhook", Webhook(SECRET), "/hooks/x", trouble=trouble, more=more)
    raise ValueError(name)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_SECRET", "s3cret")
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def push(host: Host, preset: str) -> list[str]:
    """Pushes all items; returns what the vendor knows each by."""
    names: list[str] = []
    with connect(host.socket, wait=HANG_S) as client:
        for first in range(0, ITEMS, RUN_ITEMS):
            keys = [f"c{number}@example.org" for number in range(first, first + RUN_ITEMS)]
            payloads = [json.dumps({"email": key}).encode() for key in keys]
            run = encode_run(payloads, queue="crm", keys=[key.encode() for key in keys])
            client.submit(run)
            ids = Run(read_head(run), run).item_ids()
            names += ids if preset == "webhook" else keys
        client.drain()
    return names


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["salesforce", "hubspot", "braze", "elasticsearch", "graphql", "webhook"]
)
def test_the_apis_record_and_the_books_agree(name: str, tmp_path: Path, secrets: None) -> None:
    case = case_of(name)
    vendor = case.vendor
    endpoints = [] if case.tokens is None else [TokenEndpoint(case.tokens)]
    with VendorServer(vendor, *endpoints) as server:
        queue = {
            "handler": case.handler(server),
            "workers": {"count": 8},
            "backoff": {"initial": "10ms", "max": "100ms"},
            "breaker": {"threshold": 3, "reset_timeout": "50ms"},
            "max_retries": 1000,
            "is_active": True,
        }
        config = {"queues": {"crm": queue}, "http": {"listen": None}}
        with running(Host(tmp_path, config)) as host:
            host.ok("pause", "crm")
            known = push(host, case.preset)
            refused = set(known[7::50])
            vendor.refuse(refused)
            if name != "braze":  # which has no error of an item that is worth another try
                vendor.be_busy(known[3::97], times=2)
            vendor.will(*case.trouble)
            host.ok("resume", "crm")
            for share in (0.1, 0.3, 0.6):
                until_seen(vendor, share * ITEMS)
                host.stop(9)
                if case.tokens is not None:
                    case.tokens.expire_all()
                vendor.will(*case.trouble, "hang")
                host.start()
            books = {"accepted": ITEMS, "delivered": ITEMS - len(refused), "dead": len(refused)}
            host.until_books(books, "crm")
            listed = host.ok("dead", "ls", "--json", "--limit", str(ITEMS))
            dead = [json.loads(line) for line in listed.splitlines()]
    seen = vendor.seen()
    assert set(seen) == set(known)
    assert {key for key, one in seen.items() if one.refused} == refused
    assert {key for key, one in seen.items() if one.accepted} == set(known) - refused
    assert {letter["id" if name == "webhook" else "key"] for letter in dead} == refused


def until_seen(vendor: Vendor, items: float) -> None:
    def enough() -> None:
        assert len(vendor.seen()) >= items

    eventually_sync(enough)
