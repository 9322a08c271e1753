"""Parses the payload of an MQTT message into records and refusals.

This module is pure: it turns bytes into records and refusals, and knows nothing about topics or connections. Nothing is
dropped silently: each quantity becomes a record or a refusal, and a payload that is not an event becomes a single
refusal.

An event is one JSON object: ``{"Thing": "R0815", "Timestamp": 1554096460415, "id": "...", "actSpeed": 288.2}``. Every
member except the first three is a quantity. An invalid quantity does not affect the valid ones of its event.

The fast path decodes an event in one pass into plain values. Anything unusual falls back to the slow path, which parses
each member from its exact text. The fast path refuses nothing. Apart from the limits of `Parser`, which are checked
first, the slow path alone determines what is refused and why.

The size of the output is linear in the size of the event. Names and times are limited in length, and so is the total
size of the copies of ``Thing`` and ``id`` in the records (`COPIES_MAX`). If more than `REFUSED_MAX` quantities are
invalid, a single dead letter covers them all.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final, NamedTuple

import msgspec

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS, parse_time
from broker.wire.records import (
    BRACKETS_MAX,
    COPIES_MAX,
    NAME_LENGTH_MAX,
    QUANTITIES_MAX,
    REFUSED_MAX,
    Record,
    Rejected,
    encode,
    reject,
)

THING: Final = "Thing"
TIME: Final = "Timestamp"
IDENTITY: Final = "id"

UNREADABLE_TOPIC: Final = "(not UTF-8)"
"""Stands for the name of an MQTT topic that is not UTF-8."""

NOT_AN_OBJECT: Final = "not a JSON object"
"""What the reason begins with if a payload is in another format."""

REASON_LENGTH_MAX: Final = 500
"""Maximum length, in characters, of the reason for a refusal. A reason may quote a very long payload."""

_EXACT_INT_MAX: Final = 2**53
"""Larger integers take the slow path, which forwards them as float64. Every reader would convert them anyway."""

_COPY_BYTES_MAX: Final = 10
"""Maximum number of bytes that one character of ``Thing`` adds to a Kafka message: up to six in the value, as a JSON
escape, and up to four in the key."""

_SHOWN_LENGTH_MAX: Final = 60
_OTHER_TYPES: Final = {
    ord('"'): "a string",
    ord("t"): "a boolean",
    ord("f"): "a boolean",
    ord("n"): "null",
    ord("["): "an array",
    ord("{"): "an object",
}


class Refusal(NamedTuple):
    """Part or all of a payload that cannot be used: the bytes to keep, the reason, and the id of the dead letter.

    ``identity`` is None if the whole payload is refused; the id is then derived from a hash of the payload.
    """

    value: bytes
    reason: str
    identity: str | None = None


class Parsed(NamedTuple):
    """The result of parsing a payload. If it is not an event, ``thing`` is empty and ``time_ns`` is 0."""

    thing: str
    time_ns: int
    records: list[Record]
    refusals: list[Refusal]


class UnusableError(ValueError):
    """Raised if a payload, or a quantity in it, cannot be used. The exception's message is the reason to report."""


_plain_values = msgspec.json.Decoder(dict[str, int | float | str])
_exact_texts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_strings = msgspec.json.Decoder(str)


class Parser:
    """Parses MQTT payloads. Numeric ``Timestamp`` values are in ``time_unit`` (a key of `broker.times.UNIT_NS`).

    A payload with more than ``event_bytes_max`` bytes or `BRACKETS_MAX` opening brackets is refused without parsing.
    """

    def __init__(self, time_unit: str, event_bytes_max: int) -> None:
        self._unit = time_unit
        self._unit_ns = UNIT_NS[time_unit]
        self._time_min = -(-TIME_MIN_NS // self._unit_ns)
        self._time_max = TIME_MAX_NS // self._unit_ns
        self._bytes_max = event_bytes_max

    def parse(self, payload: bytes) -> Parsed:
        """Return the records in ``payload``, and a refusal for each part that cannot be used. Never raises."""
        if len(payload) > self._bytes_max:
            reason = f"the payload is {len(payload)} bytes long, more than events.event_bytes_max = {self._bytes_max}"
            return Parsed("", 0, [], [Refusal(payload, reason)])
        if len(payload) > BRACKETS_MAX and payload.count(b"[") + payload.count(b"{") > BRACKETS_MAX:
            # How deep the decoder can recurse depends on the stack of its caller. A fixed limit makes the result the
            # same for every caller.
            reason = f"the payload has more than {BRACKETS_MAX} brackets"
            return Parsed("", 0, [], [Refusal(payload, reason)])
        return self._parse_plain(payload) or self._parse_members(payload)

    def _parse_plain(self, payload: bytes) -> Parsed | None:
        """Parse an event on the fast path. Return None if the slow path has to parse it."""
        try:
            fields: dict[str, Any] = _plain_values.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        # Each member has a colon, and the decoder merges members with the same name. If the counts are equal, no name
        # is repeated.
        if payload.count(b":") != len(fields):
            return None
        thing, time, identity = fields.pop(THING, None), fields.pop(TIME, None), fields.pop(IDENTITY, None)
        if (
            type(thing) is not str
            or type(identity) is not str
            or type(time) is not int
            or not 0 < len(thing) <= NAME_LENGTH_MAX
            or not 0 < len(identity) <= NAME_LENGTH_MAX
            or not self._time_min <= time <= self._time_max
            or not 0 < len(fields) <= QUANTITIES_MAX
            # Compares an upper bound on the size of the copies; the slow path computes their exact size.
            or len(fields) * (len(thing) + len(identity) + 1) * _COPY_BYTES_MAX > COPIES_MAX * len(payload)
        ):
            return None
        records = []
        for name, value in fields.items():
            if not 0 < len(name) <= NAME_LENGTH_MAX or type(value) is str:
                return None
            if type(value) is int and not -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX:
                return None
            records.append(Record(thing, name, time, value, identity))
        return Parsed(thing, time * self._unit_ns, records, [])

    def _parse_members(self, payload: bytes) -> Parsed:
        """Parse an event on the slow path, which decodes each member from its exact JSON text."""
        try:
            texts = _members(payload)
            thing = _name(texts, THING)
            identity = _name(texts, IDENTITY)
            time, time_ns = self._time(texts)
            _check_size(len(texts) - len((THING, TIME, IDENTITY)), thing, identity, len(payload))
        except UnusableError as error:
            return Parsed("", 0, [], [Refusal(payload, short(str(error)))])
        records: list[Record] = []
        reasons: dict[str, str] = {}
        for name, text in texts.items():
            if name in (THING, TIME, IDENTITY):
                continue
            try:
                records.append(
                    Record(thing, _quantity_name(name), time, number_in(text, f"quantity {shown(name)}"), identity)
                )
            except UnusableError as error:
                reasons[name] = short(str(error))
        if not records and not reasons:
            return Parsed("", 0, [], [Refusal(payload, "the event has no quantity")])
        return Parsed(thing, time_ns, records, _refusals_of_parts(payload, texts, reasons))

    def _time(self, texts: dict[str, bytes]) -> tuple[Any, int]:
        """Return the event's time in two forms: exactly as given, for forwarding, and in ns. Raises `UnusableError`.

        The time as given is an int, a str or, for a number that is not an integer, its text as `msgspec.Raw`.
        """
        text = texts.get(TIME)
        if text is None:
            message = f"{TIME} is missing"
            raise UnusableError(message)
        try:
            if text[:1] == b'"':
                given: str = _strings.decode(text)
                return given, parse_time(given, self._unit)
            time_ns = parse_time(text, self._unit)
        except ValueError as error:  # DecodeError and UnicodeDecodeError are ValueErrors too
            message = f"{TIME}: {error}"
            raise UnusableError(message) from error
        digits = text.removeprefix(b"-")
        return (int(text) if digits.isdigit() else msgspec.Raw(text)), time_ns


def dead_letter(refusal: Refusal, mqtt_topic: str) -> Rejected:
    """Return the dead letter for a refusal.

    The name of the MQTT topic is truncated, because it may be up to 65,535 bytes long.
    """
    topic = mqtt_topic if len(mqtt_topic) <= NAME_LENGTH_MAX else mqtt_topic[:NAME_LENGTH_MAX] + "..."
    return reject(refusal.value, refusal.reason, source="connector", topic=topic, identity=refusal.identity)


def number_in(text: bytes, what: str) -> float:
    """Return a JSON number as a float, or as an int if it is an integer below `_EXACT_INT_MAX` in magnitude.

    Raises `UnusableError` if ``text``, a JSON value, is not a number or is beyond the range of float64. ``what`` it is
    begins the reason.
    """
    other = _OTHER_TYPES.get(text[0])
    if other is not None:
        message = f"{what} is {other}, not a number"
        raise UnusableError(message)
    value = float(text)
    if not math.isfinite(value):
        message = f"{what} is beyond the range of a 64-bit float: {shown(text)}"
        raise UnusableError(message)
    is_integer = text.removeprefix(b"-").isdigit()
    return int(text) if is_integer and abs(value) < _EXACT_INT_MAX else value


def measured(name: str, what: str) -> str:
    """Return the name of a thing, quantity or event. Raises `UnusableError` if it is empty or too long."""
    if not name:
        message = f"{what} is empty"
        raise UnusableError(message)
    if len(name) > NAME_LENGTH_MAX:
        message = f"{what} has {len(name)} characters, more than {NAME_LENGTH_MAX}"
        raise UnusableError(message)
    return name


def shown(value: str | bytes) -> str:
    """Return the beginning of a value, for a reason."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "..."


def short(reason: str) -> str:
    """Return a reason of at most `REASON_LENGTH_MAX` characters, or its beginning."""
    return reason if len(reason) <= REASON_LENGTH_MAX else reason[:REASON_LENGTH_MAX] + "..."


def _check_size(quantities: int, thing: str, identity: str, payload_bytes: int) -> None:
    """Raise `UnusableError` if an event has too many quantities, or its records would be much larger than the event."""
    if quantities > QUANTITIES_MAX:
        message = f"the event has {quantities} quantities, more than {QUANTITIES_MAX}"
        raise UnusableError(message)
    copied = quantities * (len(encode(thing)) + len(thing.encode()) + len(encode(identity)))
    if copied > COPIES_MAX * payload_bytes:
        message = (
            f"repeating {THING} and {IDENTITY} in {quantities} records would take {copied} bytes, more than "
            f"{COPIES_MAX} times the event's {payload_bytes} bytes: shorten them, or send fewer quantities per event"
        )
        raise UnusableError(message)


def _refusals_of_parts(payload: bytes, texts: dict[str, bytes], reasons: dict[str, str]) -> list[Refusal]:
    """Return one refusal per invalid quantity, or a single refusal of the whole event if too many are invalid."""
    if not reasons:
        return []
    if len(reasons) > REFUSED_MAX:
        first = next(iter(reasons.values()))
        reason = f"{len(reasons)} quantities of the event are invalid (limit {REFUSED_MAX}); the first error: {first}"
        return [Refusal(payload, short(reason))]
    digest = hashlib.sha256(payload).hexdigest()
    return [
        Refusal(_part_of_event(texts, name), reason, _identity_of_part(digest, name))
        for name, reason in reasons.items()
    ]


def _members(payload: bytes) -> dict[str, bytes]:
    """Return the exact JSON text of each member, by name.

    Raises `UnusableError` if the payload is not a JSON object, or if a name is repeated.
    """
    if not payload:
        raise UnusableError("the payload is empty")
    try:
        payload.decode()  # the decoder does not check the values that it keeps as raw text
        texts = {name: bytes(raw) for name, raw in _exact_texts.decode(payload).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = f"{NOT_AN_OBJECT}: {error}"
        if b"NaN" in payload or b"Infinity" in payload:
            reason += " (JSON has no NaN and no Infinity)"
        raise UnusableError(reason) from error
    if payload.count(b":") > len(texts):
        _refuse_repeated_names(payload, texts)
    return texts


def _refuse_repeated_names(payload: bytes, texts: dict[str, bytes]) -> None:
    """Raise `UnusableError` if a name is repeated, or if the json module cannot parse the payload.

    The json module returns all occurrences of a name, whereas msgspec silently keeps only the last.
    """
    try:
        pairs = json.loads(payload, object_pairs_hook=list, parse_int=len, parse_float=len)
    except (ValueError, RecursionError) as error:
        reason = f"{NOT_AN_OBJECT}: {error}"
        raise UnusableError(reason) from error
    if len(pairs) == len(texts):
        return
    seen: set[str] = set()
    for name, _value in pairs:
        if name in seen:
            message = f"the member {shown(name)} occurs more than once"
            raise UnusableError(message)
        seen.add(name)


def _name(texts: dict[str, bytes], member: str) -> str:
    text = texts.get(member)
    if text is None:
        message = f"{member} is missing"
        raise UnusableError(message)
    try:
        name: str = _strings.decode(text)
    except ValueError as error:
        message = f"{member} must be a string, not {shown(text)}"
        raise UnusableError(message) from error
    return measured(name, member)


def _quantity_name(name: str) -> str:
    return measured(name, f"the name of quantity {shown(name)}")


def _part_of_event(texts: dict[str, bytes], name: str) -> bytes:
    """Return a copy of the event with only the quantity ``name``, so that no dead letter repeats the whole event."""
    kept = (THING, TIME, IDENTITY, name)
    members = (msgspec.json.encode(member) + b":" + texts[member] for member in kept)
    return b"{" + b",".join(members) + b"}"


def _identity_of_part(digest: str, name: str) -> str:
    if len(name) > NAME_LENGTH_MAX:
        name = f"{name[:NAME_LENGTH_MAX]}...{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"mqtt:{digest[:32]}:{name}"
