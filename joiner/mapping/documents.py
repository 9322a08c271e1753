"""Decodes JSON messages into documents, within limits that do not depend on the process.

Documents from other formats can also contain `Instant`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec

from broker.wire.records import Unreadable

MESSAGE_BYTES_MAX: Final = 1024 * 1024
"""The maximum size of a message in bytes: Kafka's default for ``max.message.bytes``."""

DEPTH_MAX: Final = 100
"""How deeply a message can be nested. The parser's own limit depends on the process, and is higher."""

NUMBER_LENGTH_MAX: Final = 400
"""The maximum length of a number in characters. Longer integers would be read differently by different processes."""

EXPONENT_LENGTH_MAX: Final = 6
"""The maximum number of digits of an exponent. With more, Decimal could not hold every number."""

_LONG: Final = re.compile(rb"[-+.0-9eE]{%d}" % (NUMBER_LENGTH_MAX + 1))
# A string need not be closed: otherwise, each quote in one that is not would be tried as the beginning of another.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_TOKEN: Final = re.compile(_STRING + rb"|[-0-9][-+.0-9eE]*+", re.DOTALL)
_BRACKET: Final = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)


class Instant(int):
    """A timestamp as a number, from a format whose times know their unit. ``unit``: a key of `broker.times.UNIT_NS`."""

    unit = "ms"


class _Microseconds(Instant):
    unit = "us"


class _Nanoseconds(Instant):
    unit = "ns"


INSTANTS: Final = {"ms": Instant, "us": _Microseconds, "ns": _Nanoseconds}
"""The types of timestamps, by their unit."""


def decode_document(value: bytes) -> Any:
    """Decode a JSON message. Numbers are of type int or Decimal.

    Raises `Unreadable` if the message is empty, too long, nested too deeply, or is not JSON.
    """
    if not value:
        raise Unreadable("the value is empty")
    if len(value) > MESSAGE_BYTES_MAX:
        message = f"the value has {len(value)} bytes, more than {MESSAGE_BYTES_MAX}"
        raise Unreadable(message)
    if _LONG.search(value) is not None and any(len(token) > NUMBER_LENGTH_MAX for token in _numbers_in(value)):
        message = f"the value contains a number of more than {NUMBER_LENGTH_MAX} characters"
        raise Unreadable(message)
    # Checked before decoding, even if the message is not JSON: the parser's own limit depends on the caller's stack.
    if value.count(b"[") + value.count(b"{") > DEPTH_MAX and is_deeper(value, DEPTH_MAX):
        message = f"the value is nested more than {DEPTH_MAX} levels deep"
        raise Unreadable(message)
    try:
        return _documents.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        message = f"not JSON: {error}"
        raise Unreadable(message) from error


def _decimal(text: str) -> Decimal:
    _, _, exponent = text.lower().partition("e")
    if len(exponent.lstrip("+-")) > EXPONENT_LENGTH_MAX:
        message = f"an exponent has more than {EXPONENT_LENGTH_MAX} digits"
        raise ValueError(message)
    return Decimal(text)


_documents: Final = msgspec.json.Decoder(float_hook=_decimal)


def _numbers_in(value: bytes) -> Iterator[bytes]:
    """Yield what may be a number: each run of such characters outside strings."""
    return (match[0] for match in _TOKEN.finditer(value) if not match[0].startswith(b'"'))


def is_deeper(value: bytes, levels: int) -> bool:
    """Return whether brackets outside strings are nested more than ``levels`` deep."""
    depth = 0
    for match in _BRACKET.finditer(value):
        depth += _NESTS.get(match[0], 0)
        if depth > levels:
            return True
    return False


_NESTS: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
