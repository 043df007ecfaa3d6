"""The APIs that presets are for, as their documentation describes them."""

import base64
import hashlib
import hmac
import time
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tests.vendors.base import Reply, Request, Tokens, Vendor


class Salesforce(Vendor):
    """sObject Collections: PATCH …/composite/sobjects/TYPE/FIELD, POST …/composite/sobjects.

    An item's key is its external id, or its `Id__c` if the request names no field.
    """

    prefix = "/services/data/"
    items_max = 200

    def carry_out(self, request: Request) -> Reply:
        content = request.json()
        records = content.get("records") if isinstance(content, dict) else None
        if not isinstance(records, list) or not records:
            return self._problem(400, "JSON_PARSER_ERROR", "records is missing")
        if len(records) > self.items_max:
            text = f"at most {self.items_max} records are allowed"
            return self._problem(400, "INVALID_INPUT", text)
        if not all(
            isinstance(one, dict) and one.get("attributes", {}).get("type") for one in records
        ):
            return self._problem(400, "INVALID_INPUT", "a record has no attributes.type")
        named = request.path.partition("/sobjects")[2].strip("/").split("/")
        key_field = named[1] if len(named) == 2 else "Id__c"
        keys = [str(one.get(key_field)) for one in records]
        verdicts = [self.verdict(key) for key in keys]
        if content.get("allOrNone") and set(verdicts) != {"accepted"}:
            for key, verdict in zip(keys, verdicts, strict=True):
                if verdict != "accepted":
                    self.record(key, verdict)
            rolled_back = ("ALL_OR_NONE_OPERATION_ROLLED_BACK", "Record rolled back")
            return Reply(
                200,
                [
                    self._failed(*(rolled_back if verdict == "accepted" else self._why(verdict)))
                    for verdict in verdicts
                ],
            )
        for key, verdict in zip(keys, verdicts, strict=True):
            self.record(key, verdict)
        return Reply(
            200,
            [
                {"id": f"003{at:015d}", "success": True, "errors": [], "created": True}
                if verdict == "accepted"
                else self._failed(*self._why(verdict))
                for at, verdict in enumerate(verdicts)
            ],
        )

    def rate_limited(self) -> Reply:
        return self._problem(403, "REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded.")

    def unauthorized(self) -> Reply:
        return self._problem(401, "INVALID_SESSION_ID", "Session expired or invalid")

    def _why(self, verdict: str) -> tuple[str, str]:
        if verdict == "busy":
            text = "unable to obtain exclusive access to this record"
            return "UNABLE_TO_LOCK_ROW", text
        return "REQUIRED_FIELD_MISSING", "Required fields are missing: [LastName]"

    def _failed(self, code: str, text: str) -> dict[str, Any]:
        return {"success": False, "errors": [{"statusCode": code, "message": text, "fields": []}]}

    def _problem(self, status: int, code: str, text: str) -> Reply:
        return Reply(status, [{"message": text, "errorCode": code}])


class HubSpot(Vendor):
    """CRM objects: POST /crm/v3/objects/TYPE/batch/upsert. An item's key is the `id` of its input.

    Errors are reported per item if every input has an `objectWriteTraceId`; otherwise an invalid
    input refuses the request.
    """

    prefix = "/crm/v3/objects/"
    items_max = 100

    def carry_out(self, request: Request) -> Reply:
        content = request.json()
        inputs = content.get("inputs") if isinstance(content, dict) else None
        if not isinstance(inputs, list) or not all(
            isinstance(one, dict)
            and "idProperty" in one
            and isinstance(one.get("properties"), dict)
            for one in inputs
        ):
            return self._problem(400, "VALIDATION_ERROR", "Invalid input JSON")
        if len(inputs) > self.items_max:
            text = f"The maximum batch size is {self.items_max}"
            return self._problem(400, "VALIDATION_ERROR", text)
        keys = [str(one.get("id")) for one in inputs]
        if len(set(keys)) < len(keys):
            return self._problem(400, "VALIDATION_ERROR", "Duplicate IDs found in batch input")
        traces = [one.get("objectWriteTraceId") for one in inputs]
        verdicts = [self.verdict(key) for key in keys]
        if not all(traces) and set(verdicts) != {"accepted"}:
            for key, verdict in zip(keys, verdicts, strict=True):
                if verdict != "accepted":
                    self.record(key, verdict)
            return self._problem(400, "VALIDATION_ERROR", "Property values were not valid")
        results: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for key, trace, verdict, one in zip(keys, traces, verdicts, inputs, strict=True):
            self.record(key, verdict)
            if verdict == "accepted":
                results.append(
                    {"id": key, "properties": one["properties"], "objectWriteTraceId": trace}
                )
                continue
            category, text = ("VALIDATION_ERROR", "Property values were not valid")
            if verdict == "busy":
                category, text = ("RATE_LIMITS", "You have reached your secondly limit.")
            context = {"objectWriteTraceId": [trace]}
            errors.append(
                {"status": "error", "category": category, "message": text, "context": context}
            )
        answer: dict[str, Any] = {"status": "COMPLETE", "results": results}
        if errors:
            return Reply(207, answer | {"numErrors": len(errors), "errors": errors})
        return Reply(200, answer)

    def rate_limited(self) -> Reply:
        found = self._problem(429, "RATE_LIMITS", "You have reached your secondly limit.")
        body = found.body | {"errorType": "RATE_LIMIT", "policyName": "SECONDLY"}
        return Reply(429, body, {"Retry-After": str(self.pause_s)})

    def unauthorized(self) -> Reply:
        text = "The OAuth token used to make this call expired 0 second(s) ago."
        return self._problem(401, "EXPIRED_AUTHENTICATION", text)

    def _problem(self, status: int, category: str, text: str) -> Reply:
        body = {"status": "error", "message": text, "correlationId": "c-1", "category": category}
        return Reply(status, body)


class Braze(Vendor):
    """POST /users/track with attributes, events or purchases. The key is the `external_id`."""

    prefix = "/users/track"
    items_max = 75
    LISTS = ("attributes", "events", "purchases")

    def carry_out(self, request: Request) -> Reply:
        content = request.json()
        if not isinstance(content, dict):
            return Reply(400, {"message": "The request was not valid JSON"})
        given = {name: content[name] for name in self.LISTS if name in content}
        if not given or not all(isinstance(one, list) for one in given.values()):
            return Reply(400, {"message": "attributes, events or purchases is required"})
        if sum(len(one) for one in given.values()) > self.items_max:
            return Reply(400, {"message": f"at most {self.items_max} objects are allowed"})
        answer: dict[str, Any] = {"message": "success"}
        errors: list[dict[str, Any]] = []
        for name, objects in given.items():
            for index, one in enumerate(objects):
                # Nothing is known to be temporary here: busy items are refused too.
                if self.judge(str(one.get("external_id"))) != "accepted":
                    text = "'external_id' is required"
                    errors.append({"type": text, "input_array": name, "index": index})
            answer[f"{name}_processed"] = len(objects)
        if not errors:
            return Reply(201, answer)
        if len(errors) == sum(len(one) for one in given.values()):
            return Reply(400, {"message": "No valid objects were given", "errors": errors})
        return Reply(201, answer | {"errors": errors})

    def rate_limited(self) -> Reply:
        ends = time.time() + self.pause_s
        limit = self.rate.requests if self.rate is not None else 3000
        headers = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": str(int(ends)),
        }
        return Reply(429, {"message": "Rate limit exceeded"}, headers)

    def unauthorized(self) -> Reply:
        return Reply(401, {"message": "Invalid API key"})


class Elasticsearch(Vendor):
    """POST …/_bulk with index and create actions. An item's key is its `_id`."""

    prefix = "/"
    items_max = 100_000
    bytes_max = 100 * 1024 * 1024

    def carry_out(self, request: Request) -> Reply:
        if request.headers.get("content-type") not in ("application/x-ndjson", "application/json"):
            return self._problem(406, "media_type_header_exception", "Content-Type is wrong")
        if len(request.body) > self.bytes_max:
            return Reply(413, b"", {"Content-Type": "text/plain"})
        if not request.body.endswith(b"\n"):
            text = "The bulk request must be terminated by a newline [\\n]"
            return self._problem(400, "illegal_argument_exception", text)
        lines = request.body.splitlines()
        items: list[dict[str, Any]] = []
        for action_line, source in zip(lines[::2], lines[1::2], strict=False):
            try:
                ((action, meta),) = msgspec.json.decode(action_line).items()
                msgspec.json.decode(source)
            except (msgspec.DecodeError, AttributeError, ValueError):
                text = "Malformed action/metadata line"
                return self._problem(400, "illegal_argument_exception", text)
            items.append({action: self._index(str(meta.get("_id")))})
        has_errors = any("error" in result for item in items for result in item.values())
        if "filter_path" in parse_qs(request.query):
            items = [
                {
                    action: {name: result[name] for name in ("status", "error") if name in result}
                    for action, result in item.items()
                }
                for item in items
            ]
        return Reply(200, {"errors": has_errors, "items": items})

    def rate_limited(self) -> Reply:
        return self._problem(429, "es_rejected_execution_exception", "queue is full")

    def unauthorized(self) -> Reply:
        return self._problem(401, "security_exception", "unable to authenticate")

    def _index(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = {"_index": "contacts", "_id": key}
        match self.judge(key):
            case "accepted":
                return found | {"status": 201, "result": "created"}
            case "busy":
                reason = "rejected execution of primary operation"
                error = {"type": "es_rejected_execution_exception", "reason": reason}
                return found | {"status": 429, "error": error}
            case "refused":
                error = {"type": "document_parsing_exception", "reason": "failed to parse [age]"}
                return found | {"status": 400, "error": error}

    def _problem(self, status: int, kind: str, text: str) -> Reply:
        return Reply(status, {"error": {"type": kind, "reason": text}, "status": status})


class GraphQL(Vendor):
    """POST /graphql. An item's key is `variables.id`, or `variables.input.id`."""

    prefix = "/graphql"

    def carry_out(self, request: Request) -> Reply:
        content = request.json()
        query = content.get("query") if isinstance(content, dict) else None
        if not isinstance(query, str):
            return Reply(400, {"errors": [{"message": "Must provide a query string."}]})
        variables = content.get("variables") or {}
        key = str(variables.get("id", (variables.get("input") or {}).get("id")))
        match self.judge(key):
            case "accepted":
                return Reply(200, {"data": {"upsert": {"id": key}}})
            case "busy":
                return self.rate_limited()
            case "refused":
                error = {"message": "email is invalid", "path": ["upsert"]}
                error |= {"extensions": {"code": "BAD_USER_INPUT"}}  # type: ignore[dict-item]
                return Reply(200, {"data": None, "errors": [error]})

    def rate_limited(self) -> Reply:
        error = {"message": "Throttled", "extensions": {"code": "THROTTLED"}}
        status = {"maximumAvailable": 1000.0, "currentlyAvailable": 12, "restoreRate": 50.0}
        cost = {"requestedQueryCost": 752, "actualQueryCost": None, "throttleStatus": status}
        return Reply(200, {"errors": [error], "extensions": {"cost": cost}})

    def unauthorized(self) -> Reply:
        return Reply(401, {"errors": [{"message": "Invalid API key or access token"}]})


class Webhook(Vendor):
    """A receiver by the Standard Webhooks specification. An item's key is its `webhook-id`. With a
    secret (`whsec_…`) it checks signatures."""

    prefix = "/hooks/"
    TOLERANCE_S = 300

    def __init__(self, secret: str | None = None) -> None:
        super().__init__()
        encoded = (secret or "").removeprefix("whsec_")
        self._secret = base64.b64decode(encoded) if secret is not None else None

    def carry_out(self, request: Request) -> Reply:
        if self._secret is not None and not self._is_signed(request, self._secret):
            return self.unauthorized()
        key = request.headers.get("webhook-id") or request.headers.get("idempotency-key", "")
        match self.judge(key):
            case "accepted":
                return Reply(204)
            case "busy":
                return Reply(503, b"", {"Retry-After": str(self.pause_s)})
            case "refused":
                return Reply(400, {"error": "unknown event type"})

    def rate_limited(self) -> Reply:
        return Reply(429, b"", {"Retry-After": str(self.pause_s)})

    def unauthorized(self) -> Reply:
        return Reply(401, {"error": "invalid signature"})

    def _is_signed(self, request: Request, secret: bytes) -> bool:
        message_id = request.headers.get("webhook-id", "")
        at = request.headers.get("webhook-timestamp", "")
        if not at.isdigit() or abs(time.time() - int(at)) > self.TOLERANCE_S:
            return False
        signed = b"%b.%b.%b" % (message_id.encode(), at.encode(), request.body)
        found = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
        given = request.headers.get("webhook-signature", "").split()
        return any(hmac.compare_digest(one, f"v1,{found}") for one in given)


class TokenEndpoint(Vendor):
    """An OAuth 2 token endpoint: client credentials in the form or in an Authorization header."""

    prefix = "/oauth/token"

    def __init__(self, tokens: Tokens, client_id: str = "forebay", secret: str = "s3cret") -> None:
        super().__init__()
        self._issuer = tokens
        self._client = (client_id, secret)

    def carry_out(self, request: Request) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("grant_type") != "client_credentials":
            return Reply(400, {"error": "unsupported_grant_type"})
        if self._credentials(request, form) != self._client:
            return self.unauthorized()
        answer = {"access_token": self._issuer.issue(), "token_type": "Bearer"}
        return Reply(200, answer | {"expires_in": round(self._issuer.lifetime_s)})

    def rate_limited(self) -> Reply:
        return Reply(429, {"error": "temporarily_unavailable"}, {"Retry-After": str(self.pause_s)})

    def unauthorized(self) -> Reply:
        return Reply(401, {"error": "invalid_client"})

    def _credentials(self, request: Request, form: dict[str, str]) -> tuple[str, str]:
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return form.get("client_id", ""), form.get("client_secret", "")
        client_id, _, secret = base64.b64decode(encoded).decode().partition(":")
        return client_id, secret
