"""The values of secrets that this process knows, so that no text shows one.

Names tell most secrets from other text (actors/model/masking.py). Values that came from a reference
or a token endpoint are known, and are masked wherever they appear: a destination, a program or a
library may repeat one in an error, under any name or none.

It is consulted where texts arise that others wrote or that go out: `Failure`, log lines, events,
and what the process writes to its standard error. A text of 100 characters costs 0.3 µs without
secrets, 2 µs with 20 of them and 25 µs with 300. Payloads are data and stay as they are.

It cannot find a secret that was cut, hashed or encoded in another way than those of `_forms`.
"""

import json
from typing import Final
from urllib.parse import quote, quote_plus

from actors.model.masking import MASK

CHARACTERS_MIN: Final = 8
"""Anything shorter would occur in ordinary text."""
TOKENS_MAX: Final = 1000
"""Tokens that were fetched; past that the oldest are forgotten. They have expired long before."""


class SecretValues:
    """May be used from any thread: what is looked at is replaced, never changed."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}
        self._tokens: dict[str, None] = {}
        self._forms: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        """A secret of the configuration: known as long as the process lives, since an old value may
        still be valid somewhere after it was rotated."""
        if value not in self._kept:
            self._kept[value] = None
            self._list()

    def add_token(self, value: str) -> None:
        """A token that is valid for a while."""
        if value not in self._tokens:
            self._tokens[value] = None
            if len(self._tokens) > TOKENS_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._list()

    def masked(self, text: str) -> str:
        """The text with `***` in place of secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def _list(self) -> None:
        found = {form for value in (*self._kept, *self._tokens) for form in _forms(value)}
        # A secret may be part of another one.
        self._forms = tuple(sorted(found, key=lambda form: (-len(form), form)))


def _forms(value: str) -> set[str]:
    """The secret as it is, in an address, in a form, and in JSON."""
    if len(value) < CHARACTERS_MIN:
        return set()
    return {value, quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1]}


SECRET_VALUES: Final = SecretValues()
"""Those of this process."""
