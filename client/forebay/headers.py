"""A run's headers: pairs of texts that travel with it, and that only its handlers read."""

import struct
from collections.abc import Mapping

from forebay.errors import BadRun
from forebay.limits import HEADER_NAME_BYTES_MAX, HEADER_VALUE_BYTES_MAX, HEADERS_BYTES_MAX

_LENGTHS = struct.Struct("<BH")


def pack_headers(headers: Mapping[str, str]) -> bytes:
    parts = []
    for name, value in headers.items():
        name_text = short_text("header's name", name, HEADER_NAME_BYTES_MAX)
        value_text = short_text("header's value", value, HEADER_VALUE_BYTES_MAX)
        if not name_text:
            raise BadRun("a header has no name")
        parts += [_LENGTHS.pack(len(name_text), len(value_text)), name_text, value_text]
    packed = b"".join(parts)
    if len(packed) > HEADERS_BYTES_MAX:
        raise BadRun(f"headers of {len(packed)} bytes are over the limit of {HEADERS_BYTES_MAX}")
    return packed


def unpack_headers(packed: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    while at < len(packed):
        if at + _LENGTHS.size > len(packed):
            raise BadRun("the headers end inside a length")
        name_len, value_len = _LENGTHS.unpack_from(packed, at)
        value_at = at + _LENGTHS.size + name_len
        end = value_at + value_len
        if not name_len or value_len > HEADER_VALUE_BYTES_MAX or end > len(packed):
            raise BadRun("a header's length is wrong")
        try:
            name = packed[value_at - name_len : value_at].decode()
            value = packed[value_at:end].decode()
        except UnicodeDecodeError as error:
            raise BadRun("a header is not UTF-8") from error
        if name in headers:
            raise BadRun(f"the header {name!r} is given twice")
        headers[name] = value
        at = end
    return headers


def short_text(what: str, text: str, bytes_max: int) -> bytes:
    """The text's bytes; BadRun if they are too many, or if it has none in UTF-8."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise BadRun(f"a {what} cannot be written as UTF-8") from error
    if len(encoded) > bytes_max:
        raise BadRun(f"a {what} has at most {bytes_max} bytes, not {len(encoded)}")
    return encoded
