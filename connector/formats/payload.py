"""The payloads of Sparkplug B, in Protocol Buffers.

The messages are declared here by the numbers of their fields (Sparkplug 3.0, section 6.4.1), as far as the connector
reads them. Texts are declared as bytes, because the runtime does not check their encoding, and so are the values that
the connector does not read: data sets, templates and extensions. This module needs the extra `sparkplug`.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from broker.wire.records import QUANTITIES_MAX
from connector.formats.events import UnusableError

_Field = descriptor_pb2.FieldDescriptorProto

_VALUES: Final = {
    "int_value": (10, _Field.TYPE_UINT32),
    "long_value": (11, _Field.TYPE_UINT64),
    "float_value": (12, _Field.TYPE_FLOAT),
    "double_value": (13, _Field.TYPE_DOUBLE),
    "boolean_value": (14, _Field.TYPE_BOOL),
    "string_value": (15, _Field.TYPE_BYTES),
    "bytes_value": (16, _Field.TYPE_BYTES),
    "dataset_value": (17, _Field.TYPE_BYTES),
    "template_value": (18, _Field.TYPE_BYTES),
    "extension_value": (19, _Field.TYPE_BYTES),
}
_METRIC: Final = {
    "name": (1, _Field.TYPE_BYTES),
    "alias": (2, _Field.TYPE_UINT64),
    "timestamp": (3, _Field.TYPE_UINT64),
    "datatype": (4, _Field.TYPE_UINT32),
    "is_historical": (5, _Field.TYPE_BOOL),
    "is_transient": (6, _Field.TYPE_BOOL),
    "is_null": (7, _Field.TYPE_BOOL),
}

REBIRTH: Final = "Node Control/Rebirth"
"""The metric by which a node is asked for its births."""

COMPRESSED: Final = b"SPBV1.0_COMPRESSED"
"""The ``uuid`` of a payload whose body is another payload, compressed."""

_BOOLEAN: Final = 11
_METRICS_TAG: Final = 2 << 3 | 2
_VARINT_BYTES_MAX: Final = 10
_CONTINUED: Final = 0x80
"""Bytes of a varint from this value on are followed by another one."""


def _messages() -> tuple[Any, Any]:
    """Return the classes of a payload and of a metric."""
    file = descriptor_pb2.FileDescriptorProto(name="connector/payload.proto", package="lsb", syntax="proto2")
    optional, repeated = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED
    metric = file.message_type.add(name="Metric")
    metric.oneof_decl.add(name="value")
    for name, (number, kind) in _METRIC.items():
        metric.field.add(name=name, number=number, type=kind, label=optional)
    for name, (number, kind) in _VALUES.items():
        metric.field.add(name=name, number=number, type=kind, label=optional, oneof_index=0)
    payload = file.message_type.add(name="Payload")
    payload.field.add(name="timestamp", number=1, type=_Field.TYPE_UINT64, label=optional)
    payload.field.add(name="metrics", number=2, type=_Field.TYPE_MESSAGE, label=repeated, type_name=".lsb.Metric")
    payload.field.add(name="seq", number=3, type=_Field.TYPE_UINT64, label=optional)
    payload.field.add(name="uuid", number=4, type=_Field.TYPE_BYTES, label=optional)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = (pool.FindMessageTypeByName(name) for name in ("lsb.Payload", "lsb.Metric"))
    payload_class, metric_class = (message_factory.GetMessageClass(one) for one in classes)
    return payload_class, metric_class


Payload, Metric = _messages()


def decode(payload: bytes) -> Any:
    """Return the `Payload` in a message. Raises `UnusableError`."""
    _check_fields(payload)
    try:
        found = Payload.FromString(payload)
    except DecodeError as error:
        message = f"not a payload of Sparkplug B: {error}"
        raise UnusableError(message) from error
    if found.uuid == COMPRESSED:
        raise UnusableError("the payload is compressed, which the connector does not read: turn this off at the node")
    _check_count(len(found.metrics))
    return found


def _check_fields(payload: bytes) -> None:
    """Raise `UnusableError` if a payload has too many metrics, before each takes a hundred bytes of memory.

    Skips the contents of the fields. Only the decoder says whether the payload is valid.
    """
    at = metrics = others = 0
    while at < len(payload):
        tag, at = _varint(payload, at)
        metrics += tag == _METRICS_TAG
        others += tag != _METRICS_TAG
        _check_count(metrics)
        if others > QUANTITIES_MAX:
            message = f"the payload has more than {QUANTITIES_MAX} fields besides the metrics"
            raise UnusableError(message)
        match tag & 7:
            case 0:
                _, at = _varint(payload, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(payload, at)
                at += length
            case 5:
                at += 4
            case kind:
                message = f"not a payload of Sparkplug B: a field has the wire type {kind}, which it does not use"
                raise UnusableError(message)


def _check_count(metrics: int) -> None:
    if metrics > QUANTITIES_MAX:
        message = f"the payload has more than {QUANTITIES_MAX} metrics"
        raise UnusableError(message)


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place of a payload, and the place behind it."""
    number = shift = 0
    for byte in payload[at : at + _VARINT_BYTES_MAX]:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < _CONTINUED:
            break
    else:
        at = len(payload)
    return number, at


def rebirth_payload(time_ms: int) -> bytes:
    """Return the payload of the command that asks a node for its births."""
    metric = Metric(name=REBIRTH.encode(), timestamp=time_ms, datatype=_BOOLEAN, boolean_value=True)
    encoded: bytes = Payload(timestamp=time_ms, metrics=[metric]).SerializeToString()
    return encoded
