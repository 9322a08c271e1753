"""Types of messages that are values of their own in a document, such as a timestamp.

They are decoded like other messages at first, because a message that occurs twice is merged, and converted at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from broker.wire.records import Unreadable
from joiner.mapping.documents import INSTANTS
from joiner.mapping.protobuf.compiling import BUILT_IN

DECIMAL_BYTES_MAX: Final = 166
"""The maximum size of a ``confluent.type.Decimal`` in bytes. Such a number has 400 digits, as in Avro."""

SCALE_MAX: Final = 400
"""The maximum scale of such a number, in both directions."""

_SECOND_NS: Final = 10**9

Convert = Callable[[dict[str, Any]], Any]


def converter_of(full_name: str, file: str) -> Convert | None:
    """Return what converts messages of a type, or None if they stay objects.

    ``file``: the name of the file that defines the type, because others can use the same name.
    """
    return _CONVERTERS.get(full_name) if file.startswith("google/protobuf/") or file in BUILT_IN else None


def _timestamp(found: dict[str, Any]) -> int:
    if not 0 <= found["nanos"] < _SECOND_NS:
        raise Unreadable(f"a google.protobuf.Timestamp has {found['nanos']} nanoseconds")
    return INSTANTS["ns"](found["seconds"] * _SECOND_NS + found["nanos"])


def _duration(found: dict[str, Any]) -> Decimal:
    if abs(found["nanos"]) >= _SECOND_NS or found["seconds"] * found["nanos"] < 0:
        raise Unreadable(f"a google.protobuf.Duration has {found['seconds']} s and {found['nanos']} ns")
    return Decimal(f"{found['seconds'] * _SECOND_NS + found['nanos']}E-9")


def _decimal(found: dict[str, Any]) -> Decimal:
    if len(found["value"]) > DECIMAL_BYTES_MAX or abs(found["scale"]) > SCALE_MAX:
        raise Unreadable(
            f"a confluent.type.Decimal has {len(found['value'])} bytes and the scale {found['scale']}: more than "
            f"{DECIMAL_BYTES_MAX} and {SCALE_MAX}"
        )
    return Decimal(f"{int.from_bytes(found['value'], 'big', signed=True)}E{-found['scale']}")


def _value(found: dict[str, Any]) -> Any:
    for name, value in found.items():
        return None if name == "null_value" else value
    return None


def _member(name: str) -> Convert:
    return lambda found: found[name]


_CONVERTERS: Final[dict[str, Convert]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _duration,
    "google.protobuf.Struct": _member("fields"),
    "google.protobuf.Value": _value,
    "google.protobuf.ListValue": _member("values"),
    "confluent.type.Decimal": _decimal,
    **{
        f"google.protobuf.{kind}Value": _member("value")
        for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
    },
}
