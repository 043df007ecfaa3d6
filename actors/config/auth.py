"""How the http handler proves who it is, as configured. daemon/handlers/http/auth.py does it.

Header names and addresses are checked by HttpHandler, which has the rules for them.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from actors.config.secrets import Secret, TextOrSecret
from actors.config.section import Clash, Section


class BasicAuth(Section):
    """`Authorization: Basic`."""

    type: Literal["basic"] = "basic"
    username: TextOrSecret
    password: Secret

    @property
    def own_headers(self) -> tuple[str, ...]:
        return ("Authorization",)


class BearerAuth(Section):
    """`Authorization: Bearer`, with a token that does not expire or is rotated by the operator."""

    type: Literal["bearer"] = "bearer"
    token: Secret

    @property
    def own_headers(self) -> tuple[str, ...]:
        return ("Authorization",)


class ApiKeyAuth(Section):
    """A key in a header, or in the query of the URL."""

    type: Literal["api_key"] = "api_key"
    key: Secret
    header: str | None = None
    """The header's name."""
    query: str | None = None
    """The parameter's name."""
    prefix: str = ""
    """What the header has before the key, such as `ApiKey `."""

    @model_validator(mode="after")
    def _key_has_one_place(self) -> Self:
        if bool(self.header) == bool(self.query):
            raise Clash("give either header or query: where the key goes", "header", "query")
        return self

    @property
    def own_headers(self) -> tuple[str, ...]:
        return () if self.header is None else (self.header,)


class OAuth2Auth(Section):
    """OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    type: Literal["oauth2"] = "oauth2"
    token_url: str
    client_id: TextOrSecret
    client_secret: Secret
    scope: str = ""
    audience: str = ""
    form: dict[str, TextOrSecret] = Field(default={})
    """Further fields of the token request."""
    client_auth: Literal["form", "basic"] = "form"
    """Where the token endpoint expects the id and the secret."""

    @property
    def own_headers(self) -> tuple[str, ...]:
        return ("Authorization",)


class HmacAuth(Section):
    """A signature of the body."""

    type: Literal["hmac"] = "hmac"
    scheme: Literal["standard-webhooks", "plain"] = "standard-webhooks"
    """standard-webhooks: webhook-id, webhook-timestamp and webhook-signature. plain: one header
    with the HMAC-SHA256 of the body."""
    secret: Secret
    """standard-webhooks: in base64, with or without `whsec_` before it."""
    header: str = "X-Signature"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    """Stands before the signature, as in `sha256=`. For `plain`, as are the two above."""

    @model_validator(mode="after")
    def _keys_are_used(self) -> Self:
        given = self.model_fields_set & {"header", "encoding", "prefix"}
        if self.scheme != "plain" and given:
            key = sorted(given)[0]
            raise Clash(f"{key} needs scheme: plain", key, "scheme")
        return self

    @property
    def own_headers(self) -> tuple[str, ...]:
        if self.scheme == "plain":
            return (self.header,)
        return ("webhook-id", "webhook-timestamp", "webhook-signature")


AnyAuth = BasicAuth | BearerAuth | ApiKeyAuth | OAuth2Auth | HmacAuth
Auth = Annotated[AnyAuth, Field(discriminator="type")]
