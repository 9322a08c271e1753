"""The wire formats of the Kafka topics: the types of the values, decoding with the reason for a refusal, and encoding.

Only this module and `broker.wire.bulk` parse and build these bytes; `bulk` does so for many regular records at once,
with the same results. The joiner's state topic, which no other service reads, is in `joiner.runtime.model`.

    machine.data       `Record` or `Watermark`
    machine.out        `Joined` or `AlignedRow`
    machine.late       `Late`
    machine.unmatched  `Unmatched`
    machine.rejected   `Rejected`
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from broker.times import parse_time

NAME_LENGTH_MAX: Final = 256
"""Maximum length in characters of a thing, quantity or id. These become Kafka keys and database tags."""

QUANTITIES_MAX: Final = 10_000
"""Maximum number of quantities per event. Each becomes a record, which takes a kilobyte of memory while in flight."""

COPIES_MAX: Final = 64
"""Each record has a copy of its event's ``Thing`` and ``id``. The total size of the copies may be at most this many
times the size of the event."""

REFUSED_MAX: Final = 16
"""If more quantities of an event are refused than this, the whole event becomes a single dead letter."""

RECORD_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a data record: far larger than a regular record, and small enough for two to fit into one result."""

BRACKETS_MAX: Final = 256
"""Maximum number of brackets in a data record; a regular one has two. The parser's own limit depends on the process;
this one makes every reader come to the same result."""

REASON_LENGTH_MAX: Final = 1000
"""Maximum length in characters of a dead letter's reason, which may quote the input."""

REJECTED_BYTES_MAX: Final = 64 * 1024
"""How many bytes of a rejected input are kept. Length and hash are those of the whole input."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One quantity of one event. ``phenomenonTime`` is as given: a number in the configured unit or ISO-8601.

    A number that is not an integer is kept as its exact text, a `msgspec.Raw`. The annotation omits this type, because
    msgspec cannot decode such a union.
    """

    thing: Name
    quantity: Name
    phenomenonTime: int | str  # noqa: N815 - the wire's own name
    result: float
    id: Name


class Watermark(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Declares that no record older than ``time`` follows its offset: for one thing, one quantity, both, or all.

    The member is called ``mark`` on the wire.
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
    """One pair. ``phenomenonTime`` is the exact mean of the two, a number in the configured unit.

    ``result`` is a number, or ``{"left": x, "right": y}`` if the join keeps both values. ``id`` is
    ``join:unit:left offset:right offset``. ``left`` and ``right`` are the records; compact results omit them. ``tie``
    is ``i-j``, the two ordinals among equal times of one stream and key, and is omitted if both are 0.
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
    """One row of an align: a record of its driver, with the value of each column at its time.

    ``quantity`` is the name of the align, ``phenomenonTime`` the time of the record as a number in the configured unit,
    and ``result`` its value. ``id`` is ``align:unit:offset``. ``values``: by column, None where it is missing. ``tie``
    is the ordinal among the driver's records with equal thing and time, and is omitted if it is 0.
    """

    thing: str
    quantity: str
    phenomenonTime: int | msgspec.Raw  # noqa: N815 - the wire's own name
    result: float
    id: str
    values: dict[str, float | None]
    tie: str = ""


class OutputRecord(msgspec.Struct, frozen=True, gc=False):
    """An output about one record of one stream of a join or an align: at ``topic``, ``partition`` and ``offset``.

    ``join``: the name of the join or the align. ``side``: ``left`` or ``right``; of an align, ``driver`` or the name of
    a column. ``row``: its row, if it came in a message of many records.
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
    """A record that was below the frontier of its stream on arrival. It is not joined, but kept in the late topic.

    ``id`` is ``join:unit:side:offset``.
    """


class Unmatched(OutputRecord, frozen=True, gc=False):
    """A record that is in no pair and can no longer become part of one.

    ``id`` is ``join:unit:offset:`` for a left record and ``join:unit::offset`` for a right one: a pair's id without the
    other offset.
    """


class Rejected(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A dead letter: an input or a pair that could not be used, and the reason.

    ``id`` is ``topic:partition:offset`` for a message from Kafka, ``topic:partition:offset.row`` for one row of it,
    the pair's id if the joining function failed or the database refused the pair's point, and ``mqtt:<hash>`` for
    a payload from MQTT.
    ``value`` holds the first `REJECTED_BYTES_MAX` bytes in ``encoding`` (utf-8 or base64); ``length`` and
    ``sha256`` are those of the whole.
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
    """The input is neither a record nor a watermark. The message is the reason given in the dead letter."""


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
    """Decode a value of the data topic. Return it with its event time (for a watermark, its time) in ns.

    Raises `Unreadable` with the reason for anything that is neither a record nor a watermark.
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
    """Decode many values of the data topic at once, which is several times faster than one by one.

    Returns None if they must be decoded one by one, because some are watermarks, or because `decode_data` refuses some
    for a reason other than a time out of range.
    """
    if not all(values):
        return None
    whole: Sequence[bytes] = values  # type: ignore[assignment] # none of them is None
    lines = b"\n".join(whole)
    if lines.count(b"\n") >= len(whole) or max(map(len, whole)) > RECORD_BYTES_MAX:
        return None
    # The parser reads on across lines, so two values could make up two records between them, and none alone. If every
    # value is in braces, each line break is between two objects: inside of one it would follow a comma, a colon or an
    # opening bracket, or be part of a string, where the parser refuses it.
    if not lines.startswith(b"{") or not lines.endswith(b"}") or lines.count(b"}\n{") != len(whole) - 1:
        return None
    # Every record has at least one opening bracket, and none may exceed the limit.
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
    """Decode a watermark or a record with a decimal time. Refuse everything else."""
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
    """Return the JSON of a message, or of a string in a message."""
    return _encoder.encode(message)


def encode_lines(values: Sequence[Any]) -> bytes:
    """Return the JSON of many messages or message parts, each followed by a newline. Faster than one by one."""
    return _encoder.encode_lines(values)


def decode_sides(lines: bytes) -> list[Side]:
    """Decode sides of results, as written by `encode_lines`. Times keep their exact text."""
    # The text of each time is copied, because a reference to it would keep all lines in memory.
    return [
        Side(one.quantity, cast("int", msgspec.Raw(bytes(one.phenomenonTime))), one.result, one.id)
        for one in _sides.decode_lines(lines)
    ]


def decode_joined(value: bytes) -> _JoinedIn:
    """Decode a value of the out topic. ``phenomenonTime`` is the text of a number. Only rows have ``values``.

    Raises msgspec.DecodeError.
    """
    return _joined.decode(value)


def decode_rejected(value: bytes) -> Rejected:
    """Decode a value of the dead-letter topic. Raises msgspec.DecodeError."""
    return _rejected.decode(value)


ROW_BITS: Final = 16
"""If a message holds many records, a record's position is its message's offset, shifted by this many bits, plus its
row. Otherwise it is the offset."""


def position_text(seq: int, *, has_rows: bool) -> str:
    """Return a record's position as written in ids: ``offset``, or ``offset.row`` if messages hold many records."""
    return f"{seq >> ROW_BITS}.{seq & (1 << ROW_BITS) - 1}" if has_rows else str(seq)


def pair_id(join: str, unit: int, left: int | str, right: int | str) -> str:
    """Return the id of a pair: the join, the unit, and the two positions."""
    return f"{join}:{unit}:{left}:{right}"


def row_id(align: str, unit: int, position: int | str) -> str:
    """Return the id of an aligned row: the align, the unit, and the position of the driver's record."""
    return f"{align}:{unit}:{position}"


def join_of(identity: str) -> str:
    """Return the name of the join or align in a result's id. It is unique within a topic, in all applications."""
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
    """Return the dead letter of ``value``: the reason, the position, the first bytes, the length and the hash.

    The reason may quote any input, so invalid UTF-8 in it is escaped. It is truncated at `REASON_LENGTH_MAX`.
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
