"""References to secrets: the settings say where a secret is, and never hold it.

    password: {file: /etc/forebay/crm.password}
    token: {env: CRM_TOKEN}
    client_secret: {credential: crm}          # systemd: $CREDENTIALS_DIRECTORY/crm

daemon/config/secrets.py reads the values, and each reference keeps its own. `==` compares them too:
settings with a rotated secret differ from those before, so a reload replaces the workers and
webhooks that use it as after any other change. A value is never part of what is dumped or shown.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PrivateAttr, model_serializer, model_validator

from actors.config.section import Section

FORMS: Final = "{file: PATH}, {env: NAME} or {credential: NAME}"

_NAMES: Final = {
    "file": re.compile(r"[^\0]+"),
    "env": re.compile(r"[A-Za-z_][A-Za-z0-9_]*"),
    "credential": re.compile(r"(?!\.{1,2}$)[^/\0]{1,255}"),
}


class Secret(Section):
    """Where a secret is: exactly one of the three."""

    file: Path | None = None
    """A file that holds nothing else; one line break at its end is ignored."""
    env: str | None = None
    """A variable of the daemon's environment."""
    credential: str | None = None
    """A credential that systemd passes to the daemon (LoadCredential=, SetCredential=)."""

    _value: str | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _is_a_reference(cls, given: Any) -> Any:
        """No message repeats what was given: it may be the secret itself."""
        if isinstance(given, Secret):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"a secret is not written here: say where it is, as {FORMS}")
        if len(given) != 1 or not given.keys() <= _NAMES.keys():
            raise ValueError(f"a secret is exactly one of {FORMS}")
        ((kind, name),) = given.items()
        if not isinstance(name, str | Path) or not _NAMES[kind].fullmatch(str(name)):
            raise ValueError(f"the {kind} of a secret has no valid name: write {FORMS}")
        return given

    @model_serializer
    def _as_written(self) -> dict[str, str]:
        return {self.kind: self.name}

    @property
    def kind(self) -> str:
        return "file" if self.file is not None else "env" if self.env is not None else "credential"

    @property
    def name(self) -> str:
        return str(self.file or self.env or self.credential)

    @property
    def is_read(self) -> bool:
        return self._value is not None

    @property
    def value(self) -> str:
        """The secret itself. It must have been read before."""
        assert self._value is not None, f"{{{self.kind}: {self.name}}} was not read"
        return self._value

    def keep(self, value: str) -> None:
        self._value = value


def _text_or_reference(given: object) -> object:
    if isinstance(given, str):
        return given
    if isinstance(given, Secret | Mapping):
        return Secret.model_validate(given)
    raise ValueError(f"must be a text, or a secret as {FORMS}")


TextOrSecret = Annotated[str | Secret, BeforeValidator(_text_or_reference)]
"""A value that may be a secret."""


def text_of(value: str | Secret) -> str:
    return value.value if isinstance(value, Secret) else value


def secrets_in(value: object, key: str = "") -> Iterator[tuple[str, Secret]]:
    """The references in settings, each with its key."""
    if isinstance(value, Secret):
        yield key, value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from secrets_in(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for at, child in enumerate(value):
            yield from secrets_in(child, f"{key}.{at}")
