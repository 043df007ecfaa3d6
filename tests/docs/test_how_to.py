"""The how-to pages: every configuration is valid, and `forebay try` works as each page shows it,
against a server that answers as the vendor does. Only hosts and secret files are replaced."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.config.http import HttpHandler
from actors.model.rates import parse_rate
from daemon.config.load import load
from tests.daemon.cli.commands import Host
from tests.vendors.apis import Elasticsearch, HubSpot, Salesforce, TokenEndpoint, Webhook
from tests.vendors.base import Reply, Request, Tokens, Vendor
from tests.vendors.server import VendorServer

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = {path.stem: path.read_text() for path in HOW_TO.glob("*.md")}
SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQt"
"""Base64, as webhooks want it."""


class Api(Vendor):
    """Accepts every request with a valid token."""

    prefix = "/v1/"

    def carry_out(self, request: Request) -> Reply:
        self.record(request.headers["idempotency-key"], "accepted")
        return Reply(200)

    def unauthorized(self) -> Reply:
        return Reply(401)

    def rate_limited(self) -> Reply:
        return Reply(429, b"")


def vendor_of(page: str, tokens: Tokens) -> Vendor:
    match page:
        case "salesforce":
            return Salesforce(tokens)
        case "hubspot":
            tokens.valid[SECRET] = float("inf")
            return HubSpot(tokens)
        case "elasticsearch":
            return Elasticsearch()
        case "webhook":
            return Webhook(SECRET)
        case _:
            return Api(tokens)


def configurations(page: str, url: str, secrets: Path) -> Iterator[dict[str, Any]]:
    """The first block of a page, then the same with the handler's keys of each further block."""
    first, *others = re.findall(r"^```yaml\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    text = re.sub(r"token_url: \S+", f"token_url: {url}/oauth/token", first)
    text = re.sub(r"https://[^/\s]+", url, text)
    for name in re.findall(r"file: /etc/forebay/([\w.]+)", text):
        (secrets / name).write_text(f"{SECRET}\n")
        (secrets / name).chmod(0o600)
    settings = yaml.safe_load(text.replace("/etc/forebay", str(secrets)))
    yield settings
    for other in others:
        ((queue, keys),) = settings["queues"].items()
        handler = keys["handler"] | yaml.safe_load(other)
        yield {"queues": {queue: keys | {"handler": handler}}}


def examples(page: str) -> Iterator[tuple[bytes, list[str]]]:
    """The row and the arguments of each `forebay try`."""
    row = re.search(r"^    echo '(.*)' > row\.json$", PAGES[page], re.MULTILINE)
    assert row is not None
    for line in re.findall(r"^    forebay (try .*)$", PAGES[page], re.MULTILINE):
        yield row[1].encode(), shlex.split(line, comments=True)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_configuration_is_valid(page: str, tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    for settings in configurations(page, "https://api.example", tmp_path):
        file.write_text(yaml.safe_dump(settings))
        (queue,) = load(file).queues.values()
        assert page == "rate-limits" or isinstance(queue.handler, HttpHandler)


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"rate-limits"}))
def test_a_row_can_be_tried_as_shown(page: str, tmp_path: Path) -> None:
    tokens = Tokens()
    vendor = vendor_of(page, tokens)
    client_id = re.search(r"client_id: (\S+)", PAGES[page])
    login = TokenEndpoint(tokens, client_id[1] if client_id else "", SECRET)
    with VendorServer(vendor, login) as server:
        settings = next(configurations(page, server.url(""), tmp_path))
        host = Host(tmp_path, settings)
        (tmp_path / "row.json").write_bytes(next(examples(page))[0])
        for _, line in examples(page):
            args = [
                str(tmp_path / arg) if arg.endswith((".json", ".yaml")) else arg for arg in line
            ]
            shown = host.ok(*args)
            assert shown.endswith("\ndelivered\n" if "--send" in args else "(--send sends it)\n")
            assert SECRET not in shown
    (seen,) = vendor.seen().values()
    assert seen.accepted == 1


def test_every_rate_of_the_table_is_one() -> None:
    rates = re.findall(r"^\| `([^`]+)` \|", PAGES["rate-limits"], re.MULTILINE)
    assert len(rates) >= 4
    for text in rates:
        assert parse_rate(text)
