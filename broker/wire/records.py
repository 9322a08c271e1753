"""Defines the JSON formats of the messages in the Kafka topics, and encodes and decodes the messages.

Only this module and `broker.wire.bulk` encode and decode these formats. `bulk` does so for many regular records at
once, with the same results. The format of the joiner's state topic, which no other service reads, is in
`joiner.runtime.model`.

    machine.data       `Record` or `Watermark`
    machine.out        `Joined`, `AlignedRow` or `Watermark`
    machine.late       `Late`
    machine.unmatched  `Unmatched`
    machine.rejected   `Rejected`

Topics with the outputs of replicas also hold start records (see `broker.wire.start_records`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from broker.times import parse_time

NAME_LENGTH_MAX: Final = 256
"""The maximum length of a thing, quantity or id, in characters. They become Kafka keys and database tags."""

QUANTITIES_MAX: Final = 10_000
"""The maximum number of quantities in an event. Each becomes a record, which takes 1 KB of memory while in flight."""

COPIES_MAX: Final = 64
"""Each record of an event has a copy of the event's ``Thing`` and ``id``. The total size of these copies can be at most
this many times the size of the event."""

REFUSED_MAX: Final = 16
"""If more than this many quantities of an event are invalid, the whole event becomes a single dead letter."""

RECORD_BYTES_MAX: Final = 64 * 1024
"""The maximum size of a data record in bytes. Regular records are far smaller, and two records of this size still fit
into one result."""

JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
"""The form of a number in JSON."""

BRACKETS_MAX: Final = 256
"""The maximum number of opening brackets and braces in a data record; a regular record has one. The parser also limits
nesting, but that limit depends on the process. This one ensures that every reader rejects the same records."""

REASON_LENGTH_MAX: Final = 1000
"""The maximum length in characters of the reason in a dead letter. It is limited because it may quote the input."""

REJECTED_BYTES_MAX: Final = 64 * 1024
"""The maximum number of bytes of a rejected input to copy into its dead letter. The dead letter's length and hash
describe the whole input."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One quantity of one event. ``phenomenonTime`` is unchanged: a number in the configured unit or ISO-8601 text.

    A time that is a number but not an integer is kept as its exact text, a `msgspec.Raw`. The annotation omits that
    type, because msgspec cannot decode a union that contains it.
    """

    thing: Name
    quantity: Name
    phenomenonTime: int | str  # noqa: N815 - the wire's own name
    result: float
    id: Name


class Watermark(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Declares that no record older than ``time`` follows at a later offset.

    This applies to the records of one thing, one quantity or one quantity of one thing, or to all records. In JSON, the
    field ``time`` is called ``mark``.
    """

    time: int | str = msgspec.field(name="mark")
    quantity: Name | None = None
    thing: Name | None = None


class Side(msgspec.Struct, frozen=True, gc=False):
    """One of the two records of a pair, as read."""

    quantity: str
    phenomenonTime: int | str  # noqa: N815 - the wire's own name
    result: float
    id: str


class Joined(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The result for one pair. ``phenomenonTime`` is the exact mean of the two times, a number in the configured unit.

    ``result`` is a number, or ``{"left": x, "right": y}`` if the join keeps both values. ``id`` is
    ``join:unit:left offset:right offset``. ``left`` and ``right`` are the two records; compact results omit them.
    ``tie`` is ``i-j``, where i and j are the ordinals of the left and the right record among records of the same
    stream, key and time. It is omitted if both are 0.
    """

    thing: str
    quantity: str
    phenomenonTime: int | msgspec.Raw  # noqa: N815 - the wire's own name
    result: float | dict[str, float]
    id: str
    left: Side | None = None
    right: Side | None = None
    tie: str = ""


class AlignedRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One row of an align: a record of its driver or a tick of its grid, with the value of each column at its time.

    ``quantity`` is the name of the align, and ``phenomenonTime`` the row's time as a number in the configured unit.
    ``values`` maps each column to its value, or to None if it is missing.

    With a driver, ``result`` is the value of its record, and ``id`` is ``align:unit:offset``. ``tie`` is the ordinal
    among the driver's records of the same thing and time, omitted if it is 0. With a grid, ``result`` is the
    number of columns that have a value, or the value of one of them, and ``id`` is ``align:unit:thing:tick``.
    """

    thing: str
    quantity: str
    phenomenonTime: int | msgspec.Raw  # noqa: N815 - the wire's own name
    result: float
    id: str
    values: dict[str, float | None]
    tie: str = ""


class OutputRecord(msgspec.Struct, frozen=True, gc=False):
    """Base class for messages about a single input record of one stream of a join or align.

    ``join``: the name of the join or the align. ``side``: ``left`` or ``right`` or, for an align, ``driver`` or the
    name of a column. ``topic``, ``partition`` and ``offset`` locate the record's message; ``row`` is the record's row
    if the message holds many records.
    """

    id: str
    application: str
    join: str
    side: str
    topic: str
    partition: int
    offset: int
    record: Record
    row: int | msgspec.UnsetType = msgspec.UNSET


class Late(OutputRecord, frozen=True, gc=False):
    """A record that was below the frontier of its stream on arrival. It goes to the late topic instead of being joined.

    ``id`` is ``join:unit:side:offset``.
    """


class Unmatched(OutputRecord, frozen=True, gc=False):
    """A record that is in no pair and can no longer become part of one.

    ``id`` is a pair's id without the other record's offset: ``join:unit:offset:`` for a left record, and
    ``join:unit::offset`` for a right record.
    """


class Rejected(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A dead letter: an input or a pair that could not be used, with the reason.

    ``id`` depends on what was rejected:

    - a message from Kafka: ``topic:partition:offset``, or ``topic:partition:offset.row`` for a single row of it;
    - a pair or an aligned row whose function failed or whose point the database refused: the result's id;
    - a payload from MQTT: ``mqtt:<hash>``, or ``mqtt:<hash>:<quantity>`` for a single quantity of it.

    ``value`` holds the first `REJECTED_BYTES_MAX` bytes in ``encoding`` (utf-8 or base64); ``length`` and ``sha256``
    describe the whole input.
    """

    id: str
    source: str
    reason: str
    topic: str
    length: int
    sha256: str
    encoding: Literal["utf-8", "base64"]
    value: str
    partition: int = -1
    offset: int = -1
    row: int = -1


class _RawTimeRecord(msgspec.Struct):
    thing: Name
    quantity: Name
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float
    id: Name


class _RawTimeSide(msgspec.Struct):
    quantity: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float
    id: str


class Unreadable(ValueError):
    """Raised if an input cannot be decoded. The message becomes the reason in the dead letter."""


_records = msgspec.json.Decoder(Record)
_raw_times = msgspec.json.Decoder(_RawTimeRecord)
_watermarks = msgspec.json.Decoder(Watermark)
_anything = msgspec.json.Decoder(dict[str, msgspec.Raw])
_rejected = msgspec.json.Decoder(Rejected)
_sides = msgspec.json.Decoder(_RawTimeSide)
_encoder = msgspec.json.Encoder()


class _JoinedIn(msgspec.Struct, omit_defaults=True):
    thing: str
    quantity: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float | dict[str, float]
    id: str
    left: dict[str, Any] | None = None
    right: dict[str, Any] | None = None
    values: dict[str, float | None] | None = None
    tie: str = ""


_joined = msgspec.json.Decoder(_JoinedIn)


def decode_data(value: bytes | None, time_unit: str) -> tuple[Record | Watermark, int]:
    """Decode a message from the data topic. Return the record and its event time in ns, or the watermark and its time.

    Raises `Unreadable` with the reason if the message is neither a record nor a watermark.
    """
    if not value:
        raise Unreadable("the value is empty" if value is not None else "the value is null")
    if len(value) > RECORD_BYTES_MAX:
        message = f"the value has {len(value)} bytes, more than {RECORD_BYTES_MAX}"
        raise Unreadable(message)
    if len(value) > BRACKETS_MAX and value.count(b"[") + value.count(b"{") > BRACKETS_MAX:
        message = f"the value has more than {BRACKETS_MAX} brackets"
        raise Unreadable(message)
    try:
        record = _records.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_rare(value, time_unit, error)
    return record, _time_ns(record.phenomenonTime, time_unit)


def decode_records(values: Sequence[bytes | None]) -> list[Record] | None:
    """Decode many messages from the data topic at once, which is several times faster than decoding each separately.

    Return None if the messages have to be decoded separately with `decode_data`, for example because some are
    watermarks or invalid. Event times are not checked.
    """
    if not all(values):
        return None
    whole: Sequence[bytes] = values  # type: ignore[assignment] # none of them is None
    lines = b"\n".join(whole)
    if lines.count(b"\n") >= len(whole) or max(map(len, whole)) > RECORD_BYTES_MAX:
        return None
    # The parser does not stop at line breaks, so two invalid values could together form two valid records. This cannot
    # happen if every value begins and ends with a brace: a line break between two braces cannot be inside an object,
    # where it would have to follow a comma, a colon or an opening bracket, nor inside a string, where the parser
    # rejects it.
    if not lines.startswith(b"{") or not lines.endswith(b"}") or lines.count(b"}\n{") != len(whole) - 1:
        return None
    # Every record has at least one opening bracket or brace. If one record had more than the limit, the total would be
    # at least this large.
    if lines.count(b"[") + lines.count(b"{") >= len(whole) + BRACKETS_MAX:
        return None
    try:
        records = _records.decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return records if len(records) == len(whole) else None


def _with_exact_time(raw: _RawTimeRecord) -> Record:
    time = cast("int", msgspec.Raw(bytes(raw.phenomenonTime)))
    return Record(raw.thing, raw.quantity, time, raw.result, raw.id)


def _decode_rare(value: bytes, time_unit: str, error: Exception) -> tuple[Record | Watermark, int]:
    """Decode a watermark, or a record whose time is a decimal number. Raises `Unreadable` for everything else."""
    try:
        fields = _anything.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as not_json:
        reason = f"not a JSON object: {not_json}"
        raise Unreadable(reason) from error
    try:
        if "mark" in fields and "result" not in fields:
            watermark = _watermarks.decode(value)
            return watermark, _time_ns(watermark.time, time_unit)
        raw = _raw_times.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise Unreadable(str(wrong)) from error
    return _with_exact_time(raw), _time_ns(bytes(raw.phenomenonTime), time_unit)


def _time_ns(value: int | str | bytes, time_unit: str) -> int:
    try:
        return parse_time(value, time_unit)
    except ValueError as error:
        raise Unreadable(str(error)) from error


def encode(message: Record | Watermark | Joined | AlignedRow | OutputRecord | Rejected | str) -> bytes:
    """Encode a message, or a string within a message, as JSON."""
    return _encoder.encode(message)


def encode_lines(values: Sequence[Any]) -> bytes:
    """Encode many messages, or parts of messages, as JSON lines. This is faster than encoding each separately."""
    return _encoder.encode_lines(values)


def decode_sides(lines: bytes) -> list[Side]:
    """Decode the sides of results from JSON lines (see `encode_lines`). The exact text of each time is kept."""
    # Copy the text of each time, because a reference to it would keep all lines in memory.
    return [
        Side(one.quantity, cast("int", msgspec.Raw(bytes(one.phenomenonTime))), one.result, one.id)
        for one in _sides.decode_lines(lines)
    ]


def decode_joined(value: bytes) -> _JoinedIn:
    """Decode a message from the out topic. ``phenomenonTime`` is kept as the text of a number.

    Only aligned rows have ``values``. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError if the message
    is not a result.
    """
    return _joined.decode(value)


def is_watermark(value: bytes | None) -> bool:
    """Return whether a message from the out topic is a watermark rather than a result."""
    if value is None or b'"mark"' not in value:
        return False
    try:
        _watermarks.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def decode_rejected(value: bytes) -> Rejected:
    """Decode a message from the dead-letter topic.

    Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError if the message is not a dead letter.
    """
    return _rejected.decode(value)


ROW_BITS: Final = 16
"""If messages hold many records, the position of a record is the offset of its message, shifted left by this many bits,
plus its row in the message. Otherwise the position is the offset."""


def position_text(seq: int, *, has_rows: bool) -> str:
    """Format a record's position for use in ids: ``offset``, or ``offset.row`` if messages hold many records."""
    return f"{seq >> ROW_BITS}.{seq & (1 << ROW_BITS) - 1}" if has_rows else str(seq)


def pair_id(join: str, unit: int, left: int | str, right: int | str) -> str:
    """Return the id of a pair, which consists of the join, the unit and the positions of the two records."""
    return f"{join}:{unit}:{left}:{right}"


def row_id(align: str, unit: int, position: int | str) -> str:
    """Return the id of an aligned row: the align, the unit, and the position of the driver's record or the tick."""
    return f"{align}:{unit}:{position}"


def join_of(identity: str) -> str:
    """Return the name of the join or align from a result's id. Names are unique in a topic, across applications."""
    return identity.partition(":")[0]


def reject(
    value: bytes | None,
    reason: str,
    *,
    source: str,
    topic: str,
    partition: int = -1,
    offset: int = -1,
    row: int = -1,
    identity: str | None = None,
) -> Rejected:
    """Create the dead letter for ``value``, with the reason and the position of the input.

    The reason may quote any input, so invalid UTF-8 in it is escaped. It is truncated to `REASON_LENGTH_MAX`.
    ``identity`` is the id; by default, it is built from the position, or from the hash of ``value`` if there is no
    partition (see `Rejected`).
    """
    reason = reason.encode("utf-8", "backslashreplace").decode("utf-8")[:REASON_LENGTH_MAX]
    whole = value or b""
    digest = hashlib.sha256(whole).hexdigest()
    head = whole[:REJECTED_BYTES_MAX]
    encoding: Literal["utf-8", "base64"] = "utf-8"
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(head).decode("ascii")
    if identity is None:
        place = f"{offset}.{row}" if row >= 0 else str(offset)
        identity = f"{topic}:{partition}:{place}" if partition >= 0 else f"mqtt:{digest[:32]}"
    return Rejected(identity, source, reason, topic, len(whole), digest, encoding, text, partition, offset, row)
