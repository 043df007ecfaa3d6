"""The http handler, as configured: where requests go, their form, and what answers mean.

Errors that can be found without I/O are reported here, before anything starts.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from actors.config.auth import Auth, HmacAuth, OAuth2Auth
from actors.config.rendering import BadTemplate, as_text, as_url_part
from actors.config.secrets import Secret, TextOrSecret, text_of
from actors.config.section import MIB, BatchBytes, BatchItems, Clash, Flag, Section, Timeout
from actors.config.template_bodies import Body, compile_body
from actors.config.templates import (
    ITEM_NAMES,
    Constant,
    Maker,
    Text,
    compile_maker,
    compile_text,
    compile_value,
)
from actors.model.units import Size, sizes

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"([!-~\xa1-\xff]([\t -~\xa1-\xff]*[!-~\xa1-\xff])?)?")
_OWN_HEADERS: Final = frozenset(
    [
        "host",
        "content-length",
        "content-encoding",
        "connection",
        "expect",
        "idempotency-key",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
_HOST_END = re.compile(r"[/?#\s]")


def shown_url(url: str) -> str:
    """The part of an address that may be shown, even if it is invalid: up to its host, without the
    user. A path may be a secret too, as in webhooks."""
    before, slashes, after = url.partition("//")
    scheme, rest = (before, after) if slashes else ("", before)
    _, at, rest = rest.rpartition("@")
    host = _HOST_END.split(rest, maxsplit=1)[0]
    end = "" if host == rest else "/…"
    return f"{scheme}{slashes}{'***' * bool(at)}{at}{host}{end}"


def check_url(url: str) -> None:
    """Raises ValueError if it is not an address that can be posted to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise ValueError(f"{shown_url(url)!r} is not a valid URL: {problem}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{shown_url(url)!r} is not a valid URL: use http(s)://HOST[:PORT]/PATH")
    if parts.username is not None or parts.fragment:
        raise ValueError(f"{parts.hostname}: a URL here has no user, password or fragment")
    if any(character <= " " or character > "~" for character in url):
        raise ValueError(f"{shown_url(url)!r}: contains characters that must be percent-encoded")


def check_header_name(name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid header name")
    if name.lower() in _OWN_HEADERS or name.lower().startswith("x-forebay-"):
        raise ValueError(f"{name} is set by forebay")


def check_header_value(name: str, value: str) -> None:
    if any(character in "\r\n\0" for character in value):
        raise ValueError(f"the value of {name} has a line break in it")
    if not _HEADER_VALUE.fullmatch(value):
        raise ValueError(
            f"the value of {name} has spaces around it, or characters no header may have"
        )


def check_headers(headers: Mapping[str, str | Secret]) -> None:
    """Raises ValueError. The value of a secret is checked when it was read (`header_texts`)."""
    for name, value in headers.items():
        check_header_name(name)
        if isinstance(value, str):
            check_header_value(name, value)
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("a header is given twice")


def header_texts(headers: Mapping[str, str | Secret]) -> dict[str, str]:
    """The headers with the values of their secrets, which must have been read. Raises ValueError if
    one cannot be in a header."""
    texts = {name: text_of(value) for name, value in headers.items()}
    for name, text in texts.items():
        check_header_value(name, text)
    return texts


@contextmanager
def _at(key: str) -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise Clash(f"{key}: {problem}", key) from None


EXPRESSION_MAX: Final = 1000


def check_jmespath(expression: str) -> str:
    from jmespath import compile as compile_expression
    from jmespath.exceptions import JMESPathError

    if len(expression) > EXPRESSION_MAX:
        raise ValueError(f"an expression has at most {EXPRESSION_MAX} characters")
    try:
        compile_expression(expression)
    except (JMESPathError, RecursionError) as problem:
        reason = str(problem).partition("\n")[0]
        raise ValueError(f"{expression!r} is not valid JMESPath: {reason}") from None
    return expression


JmesPath = Annotated[str, AfterValidator(check_jmespath)]


class AnswerRules(Section):
    """How a 2xx answer names the outcome of each item. Every rule is a JMESPath expression."""

    items: JmesPath = "@"
    """The list of results, one per item."""
    match: Literal["position", "id", "index"] = "position"
    """position: the list has as many entries as the batch, in the same order. id: `id` names the
    item. index: `index` is the item's position in the request. With id and index, items without an
    entry were delivered."""
    id: JmesPath = "id"
    """The item's id in an entry, or a list of ids, for `match: id`."""
    index: JmesPath = "index"
    """The item's position in the request, from 0, or a list of positions, for `match: index`."""
    ok: JmesPath | None = None
    """True: the item was delivered. Without it, an entry with an `error` or `code` has failed."""
    error: JmesPath | None = None
    """Why the item failed."""
    code: JmesPath | None = None
    """A status or error code of a failed item. An HTTP status decides about a retry as usual."""
    retry: JmesPath | None = None
    """True: the failed item is retried, whatever its `code` is."""
    unknown: Literal["fail", "deliver"] = "fail"
    """An answer without such a list. fail: the destination has failed, and all items are
    retried."""

    @model_validator(mode="after")
    def _says_what_failed(self) -> Self:
        if self.ok is None and self.error is None and self.code is None:
            raise Clash("give ok, error or code: nothing says which items failed", "ok")
        return self


METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET")


class RequestSettings(Section):
    """The request of a batch, as templates over its items."""

    method: str | None = None
    """POST, PUT, PATCH, DELETE or GET; None: the handler's `method`."""
    url: str | None = None
    """None: the handler's `url`. An address on the same host, or a path that begins with `/`.
    Values are percent-encoded."""
    query: dict[str, Any] = Field(default={})
    """Parameters that are added to the address. One whose value is null is left out."""
    headers: dict[str, Any] = Field(default={})
    """In addition to the handler's `headers`. One whose value is null is left out."""
    item: Any = None
    """An item within the body: an object, or a text; None: its payload as JSON."""
    body: Any = None
    """An object or a text that contains `items`; None: the items alone. One that does not use
    `items` is made of a single item. DELETE and GET have none, unless it is given."""

    @field_validator("method")
    @classmethod
    def _method_is_known(cls, method: str | None) -> str | None:
        if method is not None:
            value = compile_text("method", method, ITEM_NAMES)
            if isinstance(value, Constant) and value.value not in METHODS:
                raise ValueError(f"{method!r} is not one of {', '.join(METHODS)}")
        return method

    @field_validator("url")
    @classmethod
    def _url_compiles(cls, url: str | None) -> str | None:
        if url is not None:
            compile_text("url", url, ITEM_NAMES, as_url_part)
        return url

    @field_validator("query", "headers")
    @classmethod
    def _values_compile(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for name, value in values.items():
            if isinstance(value, dict | list):
                raise ValueError(f"{name}: give a text or a number")
            compile_value(f"{info.field_name}.{name}", value)
        return values

    @field_validator("headers")
    @classmethod
    def _headers_have_names(cls, headers: dict[str, Any]) -> dict[str, Any]:
        constants = {
            name: as_text(value)
            for name, value in headers.items()
            if isinstance(compile_value(name, value), Constant)
        }
        check_headers(dict.fromkeys(headers, "") | constants)
        return headers

    @field_validator("item")
    @classmethod
    def _item_compiles(cls, item: Any) -> Any:
        if item is not None:
            compile_maker("item", item)
        return item

    @model_validator(mode="after")
    def _body_compiles(self) -> Self:
        try:
            self.compiled_body()
        except BadTemplate as problem:
            raise Clash(str(problem), "body") from None
        return self

    def compiled_item(self) -> Maker:
        return compile_maker("item", "{{ payload }}" if self.item is None else self.item)

    def compiled_body(self) -> Body:
        if self.body is None and self.method in ("DELETE", "GET"):
            return compile_body("body", "", items_are_texts=False)
        items_are_texts = isinstance(self.compiled_item(), Text)
        return compile_body("body", self.body, items_are_texts=items_are_texts)


class HttpHandler(Section):
    """Posts batches to a URL."""

    type: Literal["http"] = "http"
    preset: str | None = None
    """The preset whose keys were filled in (actors/config/presets.py)."""
    url: str
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    encoding: Literal["ndjson", "json", "raw"] = "ndjson"
    """ndjson: one object per line; json: an array of them; raw: one payload per line (or the bare
    payload if a batch has one item)."""
    compression: Literal["none", "gzip", "snappy"] = "none"
    headers: dict[str, TextOrSecret] = Field(default={})
    """In addition to forebay's own; a Content-Type replaces that of the encoding."""
    request: RequestSettings | None = None
    """Templates for the request; None: the items in the form that `encoding` names."""
    auth: Auth | None = None
    """How the destination knows who sends."""
    batch_items: BatchItems = 500
    """Items in a request, at most."""
    batch_bytes: BatchBytes = 4 * MIB
    timeout: Timeout = 10
    """For a request, from the connection to the end of the answer. A batch that needs several
    requests begins none after this time; the items that are left wait for the next one."""
    answer_bytes_max: Annotated[Size, sizes("1Ki", "64Mi")] = 1 * MIB
    """A longer answer is not read."""
    item_results: Flag = True
    """An answer may report an outcome per item."""
    answer: AnswerRules | None = None
    """How it does so; None: in one of the forms of docs/handlers.md."""
    suspect: Literal["deliver", "fail"] = "deliver"
    """What a 2xx answer means that seems to report errors in a form that no rule describes."""
    outage: JmesPath | None = None
    """Examines `{status, body}` of an answer other than 2xx. True: the destination has failed, and
    all items are retried."""
    on_refused: Literal["split", "fail"] = "split"
    """split: a batch that is refused (400, 409, 413, 422) is halved until the refused items are
    alone."""
    proxy: str | None = None
    """`http://[USER@]HOST:PORT`; env: that of HTTP_PROXY, HTTPS_PROXY and NO_PROXY; None: no proxy,
    whatever the environment says."""
    proxy_password: Secret | None = None
    """Of the user in `proxy`."""
    verify_tls: Flag = True
    ca_file: Path | None = None
    """In addition to the system's authorities."""
    cert_file: Path | None = None
    key_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str) -> str:
        check_url(url)
        return url

    @field_validator("proxy")
    @classmethod
    def _proxy_is_http(cls, proxy: str | None) -> str | None:
        if proxy is None or proxy == "env":
            return proxy
        try:
            parts = urlsplit(proxy)
            is_proxy = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
        except ValueError:
            is_proxy = False
        if not is_proxy or parts.path.strip("/") or parts.query or parts.fragment:
            text = f"{shown_url(proxy)!r} is not a proxy: write http://[USER@]HOST:PORT, or env"
            raise ValueError(text)
        if any(character <= " " or character > "~" for character in proxy):
            text = f"{shown_url(proxy)!r}: contains characters that must be percent-encoded"
            raise ValueError(text)
        if parts.password is not None:
            raise ValueError(f"{shown_url(proxy)!r}: leave out the password and use proxy_password")
        return proxy

    @field_validator("headers")
    @classmethod
    def _headers_are_headers(cls, headers: dict[str, str | Secret]) -> dict[str, str | Secret]:
        check_headers(headers)
        return headers

    @model_validator(mode="after")
    def _request_stays_here(self) -> Self:
        request = self.request
        if request is None:
            return self
        if "encoding" in self.model_fields_set and self.encoding != "ndjson":
            raise Clash("encoding has no effect with request: leave it out", "encoding", "request")
        twice = {name.lower() for name in self.headers} & {name.lower() for name in request.headers}
        if twice:
            raise Clash(f"{min(twice)} is given in headers and in request.headers", "request")
        if request.url is not None and not request.url.startswith("/"):
            here = "/".join(self.url.split("/", 3)[:3]).partition("?")[0]
            fixed = re.split(r"\{[{%#]", request.url, maxsplit=1)[0]
            if not fixed.startswith((f"{here}/", f"{here}?")) and request.url != here:
                raise Clash(
                    f"request.url must begin with {shown_url(here)}/, the host of url, or with /",
                    "request",
                )
        return self

    @model_validator(mode="after")
    def _rules_are_used(self) -> Self:
        if self.answer is not None and not self.item_results:
            raise Clash("answer needs item_results: true", "answer", "item_results")
        return self

    @model_validator(mode="after")
    def _auth_is_possible(self) -> Self:
        auth = self.auth
        if auth is None:
            return self
        templated = {} if self.request is None else self.request.headers
        given = {name.lower() for name in (*self.headers, *templated)}
        for name in auth.own_headers:
            if name.lower() in given:
                raise Clash(f"auth sets {name}: leave it out of headers", "auth", "headers")
            with _at("auth.header"):
                check_header_name(name)
        if isinstance(auth, HmacAuth):
            with _at("auth.prefix"):
                check_header_value("the header", f"{auth.prefix}x")
        if isinstance(auth, OAuth2Auth):
            with _at("auth.token_url"):
                check_url(auth.token_url)
        return self

    @model_validator(mode="after")
    def _proxy_password_has_a_user(self) -> Self:
        if self.proxy_password is not None and "@" not in (self.proxy or ""):
            text = "proxy_password needs a user in proxy: http://USER@HOST:PORT"
            raise Clash(text, "proxy_password", "proxy")
        return self

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> Self:
        files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        given = [name for name, path in files.items() if path is not None]
        if given and not self.url.startswith("https:"):
            raise Clash(f"{given[0]} needs an https url", given[0], "url")
        if self.key_file is not None and self.cert_file is None:
            raise Clash("key_file needs cert_file", "key_file", "cert_file")
        return self
