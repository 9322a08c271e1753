"""What an MQTT message contains, and what the parsers of all formats share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import msgspec

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS
from broker.wire.records import COPIES_MAX, Record, encode
from connector.formats.events import Parsed, Refusal, UnusableError, short

RETAINED: Final = "retained"
"""A message that the broker had stored, and that does not say when it was measured."""

NO_NUMBER: Final = "no_number"
"""A value without a number, such as a string."""

EMPTY: Final = "empty"
"""A message without a payload, which would be a tombstone in Kafka."""

SKIP_REASONS: Final = (RETAINED, NO_NUMBER, EMPTY)
"""Why messages and values are skipped. The metric `lsb_connector_skipped_total` counts them by these names."""


class Copy(NamedTuple):
    """A message to forward unchanged to the Kafka topic ``kafka_topic``, with the MQTT topic in its header."""

    kafka_topic: str
    key: str
    value: bytes


class Found(NamedTuple):
    """The contents of a message: records and refusals, copies, and how much was skipped for each reason.

    Each part has one thing and one time. A message without contents is only acknowledged.
    """

    parts: Sequence[Parsed] = ()
    copies: Sequence[Copy] = ()
    skipped: Mapping[str, int] = MappingProxyType({})


class Levels(NamedTuple):
    """A topic, and its levels that have a name in the template."""

    topic: str
    named: dict[str, str]


class FormatParser(Protocol):
    """Parses the messages of one template."""

    def parse(self, levels: Levels, payload: bytes, *, is_retained: bool) -> Found:
        """Return the contents of a message. Never raises."""


class Context:
    """What the parsers of a connector share.

    ``clock`` returns the time in nanoseconds since the epoch. Times of records are in ``time_unit`` (a key of
    `broker.times.UNIT_NS`). A payload has at most ``bytes_max`` bytes. ``run`` must be different for each connector
    process: the ids of messages without an identity of their own begin with it.
    """

    def __init__(self, time_unit: str, bytes_max: int, clock: Callable[[], int], run: str) -> None:
        self.unit_ns = UNIT_NS[time_unit]
        self.bytes_max = bytes_max
        self.clock = clock
        self._run = run
        self._count = 0

    def arrival_id(self) -> str:
        """Return an id that no other message gets."""
        self._count += 1
        return f"{self._run}-{self._count}"

    def check_length(self, payload: bytes) -> None:
        """Raise `UnusableError` if a payload is too long."""
        if len(payload) > self.bytes_max:
            message = f"the payload is {len(payload)} bytes long, more than events.event_bytes_max = {self.bytes_max}"
            raise UnusableError(message)

    def now_ns(self) -> int:
        """Return the current time, rounded down to the unit."""
        return self.clock() // self.unit_ns * self.unit_ns

    def time_of(self, time_ns: int) -> int:
        """Return a time in the unit, as a record's ``phenomenonTime``: exact, so a decimal number if need be.

        Raises `UnusableError` if the time is outside the years that a record may have.
        """
        if not TIME_MIN_NS <= time_ns <= TIME_MAX_NS:
            raise UnusableError("the time is outside the years 1678-2261")
        whole, rest = divmod(time_ns, self.unit_ns)
        if not rest:
            return whole
        # The time is positive: only times after 1978 are given exactly. Records may have such times; see `Record`.
        text = f"{whole}.{rest:0{len(str(self.unit_ns)) - 1}d}".rstrip("0")
        return msgspec.Raw(text.encode())  # type: ignore[return-value]


def digest_of(topic: str, payload: bytes) -> str:
    """Return the hash that identifies a payload of a topic: many devices may send the same payload.

    No topic contains a NUL character.
    """
    return hashlib.sha256(topic.encode() + b"\0" + payload).hexdigest()[:32]


def refused(topic: str, payload: bytes, reason: str) -> Parsed:
    """Return a refusal of a whole payload. The reason may be of any length."""
    return Parsed("", 0, [], [Refusal(payload, short(reason), f"mqtt:{digest_of(topic, payload)}")])


def parts_of(records: Iterable[tuple[int, Record]]) -> list[Parsed]:
    """Group the records of a message, given with their times in ns, by thing and time. Their order stays the same."""
    parts: list[Parsed] = []
    for time_ns, record in records:
        if not parts or (parts[-1].thing, parts[-1].time_ns) != (record.thing, time_ns):
            parts.append(Parsed(record.thing, time_ns, [], []))
        parts[-1].records.append(record)
    return parts


def parts_with(
    records: Iterable[tuple[int, Record]], reasons: Sequence[str], what: str, topic: str, payload: bytes
) -> list[Parsed]:
    """Return the records of a message as `parts_of` does, and one refusal for all that is invalid in it.

    ``reasons``: why each is invalid. ``what``: what they are, such as ``records of the pack``.
    """
    parts = parts_of(records)
    if reasons:
        others = f"{len(reasons)} {what} are invalid; the first error: " if len(reasons) > 1 else ""
        parts.append(refused(topic, payload, others + reasons[0]))
    return parts


def check_copies(records: Iterable[Record], given_bytes: int) -> None:
    """Raise `UnusableError` if the names in the records of a message are much larger than the message.

    ``given_bytes``: the size of its payload and topic. Names may be much longer than what stands for them.
    """
    copied = sum(
        len(encode(one.thing)) + len(one.thing.encode()) + len(encode(one.quantity)) + len(encode(one.id))
        for one in records
    )
    if copied > COPIES_MAX * given_bytes:
        message = (
            f"the names in its records would take {copied} bytes, more than {COPIES_MAX} times the {given_bytes} bytes "
            "of the message: shorten them, or send fewer values per message"
        )
        raise UnusableError(message)
