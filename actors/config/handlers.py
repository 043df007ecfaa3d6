"""The handlers of queues, as configured.

Errors that can be found without I/O are reported here, before anything starts. Whether a module can
be imported or a file written is checked when the handler is opened.
"""

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from actors.config.section import MIB, Clash, Count, Flag, Section
from actors.model.units import Duration, Size, durations, format_duration, numbers, sizes
from forebay.limits import RUN_ITEMS_MAX

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
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

BatchItems = Annotated[Count, numbers(1, 16 * RUN_ITEMS_MAX)]
BatchBytes = Annotated[Size, sizes("1Ki", "1Gi")]
Timeout = Annotated[Duration, durations("10ms", "1d")]


def shown_url(url: str) -> str:
    """The part of an address that may be shown, even if it is invalid: up to its host, without the
    user. A path may be a secret too, as in webhooks."""
    before, slashes, after = url.partition("//")
    scheme, rest = (before, after) if slashes else ("", before)
    _, at, rest = rest.rpartition("@")
    host = _HOST_END.split(rest, maxsplit=1)[0]
    end = "" if host == rest else "/…"
    return f"{scheme}{slashes}{'***' * bool(at)}{at}{host}{end}"


class NullHandler(Section):
    """Discards items: every item counts as delivered."""

    type: Literal["null"] = "null"


class FileHandler(Section):
    """Appends to files: one JSON object per line, or Parquet.

    If the name contains `{time}`, files are written as `.part` and renamed when complete.
    """

    type: Literal["file"] = "file"
    path: Path
    """`{queue}` is replaced by the queue's name, `{time}` by the time a rolled file was begun."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    roll_bytes: Annotated[Size, sizes("0", "1Ti")] = 0
    """Starts a new file at this size; 0: never (Parquet: for each batch)."""
    roll_interval: Annotated[Duration, durations("0s", "365d")] = 0
    """Starts a new file after this time; 0: never (Parquet: for each batch)."""
    fsync: Flag = False
    """Sync before an item counts as delivered."""
    batch_items: BatchItems = 10000
    batch_bytes: BatchBytes = 16 * MIB
    timeout: Timeout = 30

    @property
    def is_rolled(self) -> bool:
        return bool(self.roll_bytes or self.roll_interval) or self.format == "parquet"

    @field_validator("path")
    @classmethod
    def _only_these_are_filled_in(cls, path: Path) -> Path:
        rest = str(path).replace("{queue}", "").replace("{time}", "")
        if "{" in rest or "}" in rest:
            raise ValueError(f"{str(path)!r}: the only placeholders are {{queue}} and {{time}}")
        if "{time}" in str(path.parent):
            raise ValueError(f"{str(path)!r}: {{time}} belongs in the file's name")
        return path

    @model_validator(mode="after")
    def _rolled_files_have_names_of_their_own(self) -> Self:
        if self.is_rolled and "{time}" not in self.path.name:
            raise Clash(
                f"a {self.format} file that is rolled needs {{time}} in its name: {self.path}",
                "path",
            )
        return self

    @model_validator(mode="after")
    def _parquet_is_whole_in_time(self) -> Self:
        # An item counts as delivered when its file is complete: it waits until the file is closed.
        if self.format == "parquet" and self.roll_interval > self.timeout / 2:
            raise Clash(
                f"roll_interval ({format_duration(self.roll_interval)}) of a parquet file must "
                f"not be longer than half of timeout ({format_duration(self.timeout)})",
                "roll_interval",
                "timeout",
            )
        return self

    def path_for(self, queue: str, time: str = "") -> Path:
        return Path(str(self.path).replace("{queue}", queue).replace("{time}", time))


class PullHandler(Section):
    """Sends nothing: items wait for consumers that lease them."""

    type: Literal["pull"] = "pull"


EXPRESSION_MAX: Final = 1000


class AnswerRules(Section):
    """How a 2xx answer names the outcome of each item. Every rule is a JMESPath expression."""

    items: str = "@"
    """The list of results, one per item."""
    match: Literal["position", "id"] = "position"
    """position: the list has as many entries as the batch, in the same order. id: `id` names the
    item; items without an entry were delivered."""
    id: str = "id"
    """The item's id in an entry, for `match: id`."""
    ok: str | None = None
    """True: the item was delivered. Without it, an entry with an `error` or `code` has failed."""
    error: str | None = None
    """Why the item failed."""
    code: str | None = None
    """A status or error code of a failed item. An HTTP status decides about a retry as usual."""
    retry: str | None = None
    """True: the failed item is retried. Otherwise it becomes a dead letter."""
    unknown: Literal["fail", "deliver"] = "fail"
    """An answer without such a list. fail: the destination has failed, and all items are
    retried."""

    @field_validator("items", "id", "ok", "error", "code", "retry")
    @classmethod
    def _is_jmespath(cls, expression: str | None) -> str | None:
        if expression is not None:
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

    @model_validator(mode="after")
    def _says_what_failed(self) -> Self:
        if self.ok is None and self.error is None and self.code is None:
            raise Clash("give ok, error or code: nothing says which items failed", "ok")
        return self


class HttpHandler(Section):
    """Posts batches to a URL."""

    type: Literal["http"] = "http"
    url: str
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    encoding: Literal["ndjson", "json", "raw"] = "ndjson"
    """ndjson: one object per line; json: an array of them; raw: one payload per line (or the bare
    payload if a batch has one item)."""
    compression: Literal["none", "gzip", "snappy"] = "none"
    headers: dict[str, str] = Field(default={})
    """In addition to forebay's own; a Content-Type replaces that of the encoding."""
    batch_items: BatchItems = 500
    batch_bytes: BatchBytes = 4 * MIB
    timeout: Timeout = 10
    """For a batch, from the connection to the end of the (last) answer."""
    answer_bytes_max: Annotated[Size, sizes("1Ki", "64Mi")] = 1 * MIB
    """A longer answer is not read."""
    item_results: Flag = True
    """An answer may report an outcome per item."""
    answer: AnswerRules | None = None
    """How it does so; None: in one of the forms of docs/handlers.md."""
    suspect: Literal["deliver", "fail"] = "deliver"
    """What a 2xx answer means that seems to report errors in a form that no rule describes."""
    on_refused: Literal["split", "fail"] = "split"
    """split: a batch that is refused (400, 409, 413, 422) is halved until the refused items are
    alone."""
    proxy: str | None = None
    """`http://[USER@]HOST:PORT`; env: that of HTTP_PROXY, HTTPS_PROXY and NO_PROXY; None: no proxy,
    whatever the environment says."""
    verify_tls: Flag = True
    ca_file: Path | None = None
    """In addition to the system's authorities."""
    cert_file: Path | None = None
    key_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as problem:
            raise ValueError(f"{shown_url(url)!r} is not a valid URL: {problem}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            text = f"{shown_url(url)!r} is not a valid URL: use http(s)://HOST[:PORT]/PATH"
            raise ValueError(text)
        if parts.username is not None or parts.fragment:
            raise ValueError(f"{parts.hostname}: a URL here has no user, password or fragment")
        if any(character <= " " or character > "~" for character in url):
            text = f"{shown_url(url)!r}: contains characters that must be percent-encoded"
            raise ValueError(text)
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
            raise ValueError(
                f"{shown_url(proxy)!r}: leave out the password, or write env and put the address "
                "into HTTPS_PROXY or HTTP_PROXY"
            )
        return proxy

    @field_validator("headers")
    @classmethod
    def _headers_are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid header name")
            if name.lower() in _OWN_HEADERS or name.lower().startswith("x-forebay-"):
                raise ValueError(f"{name} is set by forebay")
            if any(character in "\r\n\0" for character in value):
                raise ValueError(f"the value of {name} has a line break in it")
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(
                    f"the value of {name} has spaces around it, or characters no header may have"
                )
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("a header is given twice")
        return headers

    @model_validator(mode="after")
    def _rules_are_used(self) -> Self:
        if self.answer is not None and not self.item_results:
            raise Clash("answer needs item_results: true", "answer", "item_results")
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


class PythonHandler(Section):
    """Calls a function."""

    type: Literal["python"] = "python"
    function: str
    """`module:function`, async or not."""
    batch: Flag = False
    """Called with a list of items instead of one."""
    mode: Literal["auto", "thread", "process"] = "auto"
    """auto: an async function in the daemon's own loop (trio), any other in a thread."""
    batch_items: BatchItems = 100
    batch_bytes: BatchBytes = 4 * MIB
    timeout: Timeout = 30

    @field_validator("function")
    @classmethod
    def _function_is_named(cls, function: str) -> str:
        if not _FUNCTION.fullmatch(function):
            raise ValueError(f"{function!r} is not of the form module:function")
        return function


class CommandHandler(Section):
    """Feeds a program on its standard input; one process per batch."""

    type: Literal["command"] = "command"
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program and its arguments; no shell."""
    encoding: Literal["ndjson", "json", "raw"] = "ndjson"
    environment: dict[str, str] = Field(default={})
    directory: Path | None = None
    batch_items: BatchItems = 500
    batch_bytes: BatchBytes = 4 * MIB
    timeout: Timeout = 60
    """After this the program is told to stop, and killed after `kill_after`."""
    kill_after: Annotated[Duration, durations("0s", "5m")] = 2
    permanent_codes: tuple[Annotated[Count, numbers(1, 255)], ...] = (65,)
    """Exit codes that mean: do not retry. 65 is EX_DATAERR."""

    @field_validator("command")
    @classmethod
    def _command_can_be_passed_on(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0] or any("\0" in part for part in command):
            raise ValueError("a command is a list: the program, then its arguments")
        return command


def name_the_null_handler(value: object) -> object:
    """In YAML `{type: null}` gives None although the author means the word."""
    if isinstance(value, dict) and "type" in value and value["type"] is None:
        return {**value, "type": "null"}
    return value


AnyHandler = NullHandler | FileHandler | PullHandler | HttpHandler | PythonHandler | CommandHandler
Handler = Annotated[AnyHandler, Field(discriminator="type"), BeforeValidator(name_the_null_handler)]
