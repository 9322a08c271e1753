"""Collects a consumed batch: the lines to write, the results that cannot be written, and the offsets consumed.

This module uses neither a Kafka client nor a database: it turns messages into lines, and gives a reason for each result
that cannot be written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.commandline import describe_missing
from broker.times import mean_text
from broker.wire.records import ROW_BITS, Unreadable, decode_joined, is_watermark
from broker.wire.start_records import read_start
from db_connector.sinks.sink import Place, UnrepresentableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from db_connector.sinks.sink import Result


@dataclass
class Span:
    """A batch's range of offsets in one partition.

    ``first`` and ``last`` are -1 if the batch reached the end of the partition without reading a record from it.
    """

    assignment: int
    """The number of the assignment under which the records were consumed; see `reader`."""
    first: int = -1
    last: int = -1
    next_offset: int = -1

    def extend(self, offset: int) -> None:
        """Extend the span to the record at ``offset``."""
        self.first = offset if self.first < 0 else self.first
        self.last, self.next_offset = offset, offset + 1


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One result from a message that holds many. ``value``: the result as JSON, for its dead letter."""

    message: Message
    thing: str
    quantity: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float | dict[str, float]
    id: str
    tie: str

    def value(self) -> bytes:
        """Return the members of the result as JSON."""
        members = ("thing", "quantity", "phenomenonTime", "result", "id", "tie")
        return msgspec.json.encode({name: getattr(self, name) for name in members if getattr(self, name) != ""})

    def key(self) -> bytes | None:
        """Return the key of the message."""
        return self.message.key()

    def topic(self) -> str | None:
        """Return the topic of the message."""
        return self.message.topic()

    def partition(self) -> int | None:
        """Return the partition of the message."""
        return self.message.partition()

    def offset(self) -> int | None:
        """Return the offset of the message."""
        return self.message.offset()


@dataclass
class Results:
    """One consumed batch: the lines to write, the results that cannot be written, and the range of offsets consumed."""

    lines: list[bytes] = field(default_factory=list)
    messages: list[Message | ResultRow] = field(default_factory=list)
    """The message that each line comes from, or a `ResultRow` if the message holds many results."""
    ids: list[str] = field(default_factory=list)
    """The id of each line's result."""
    unrepresentable: list[tuple[Message | ResultRow, str, str | None]] = field(default_factory=list)
    """Results that cannot be written, each with the reason and, if it could be read, the result's id."""
    spans: dict[int, Span] = field(default_factory=dict)
    message_count: int = 0

    @property
    def records(self) -> int:
        """The number of results in the batch. A message may hold many; an unreadable message counts as one."""
        return len(self.lines) + len(self.unrepresentable)

    def add(self, message: Message, encode: Callable[[Result, Place], bytes], time_unit: str) -> None:
        """Convert each result in a message to a line, or store the reason why it cannot be converted.

        ``encode``: see `Sink.encode`. Watermarks and start records are skipped, because they are not results.
        """
        self.message_count += 1
        value, identity = message.value(), None
        if is_watermark(value) or read_start(value) is not None:
            return
        if value and not value.startswith(b"{"):
            self._add_many(message, value, encode, time_unit)
            return
        try:
            if value is None:
                raise UnrepresentableError("the value is null")
            pair = decode_joined(value)
            identity = pair.id
            line = encode(pair, _place(message))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnrepresentableError) as error:
            self.unrepresentable.append((message, str(error), identity))
        else:
            self.lines.append(line)
            self.messages.append(message)
            self.ids.append(identity)

    def _add_many(
        self, message: Message, value: bytes, encode: Callable[[Result, Place], bytes], time_unit: str
    ) -> None:
        """Convert the results in an Arrow message, or store the reason why the message cannot be read."""
        try:
            from broker.wire.arrow.results import decode_results  # noqa: PLC0415 - pyarrow is an extra

            found = decode_results(value)
        except ImportError:
            self.unrepresentable.append((message, describe_missing("pyarrow", "arrow"), None))
            return
        except Unreadable as error:
            self.unrepresentable.append((message, str(error), None))
            return
        pairs = zip(
            found.thing, found.quantity, found.time_ns, found.half, found.value, found.ids(), found.tie, strict=True
        )
        for at, (thing, quantity, time_ns, half, result, identity, tie) in enumerate(pairs):
            time = msgspec.Raw(mean_text(time_ns, time_ns + half, time_unit).encode())
            both = {"left": result[0], "right": result[1]} if isinstance(result, tuple) else result
            row = ResultRow(message, thing, quantity, time, both, identity, tie)
            try:
                line = encode(row, _place(message, at))
            except UnrepresentableError as error:
                self.unrepresentable.append((row, str(error), identity))
            else:
                self.lines.append(line)
                self.messages.append(row)
                self.ids.append(identity)


def _place(message: Message, row: int = 0) -> Place:
    # Messages that were consumed have both.
    return Place(message.partition() or 0, (message.offset() or 0) << ROW_BITS | row)
