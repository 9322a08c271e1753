"""A consumed batch: the lines of its results, the results that have no line, and the offsets that it spans.

It uses no Kafka client and no database: messages in, lines and reasons out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.wire.records import decode_joined
from db_connector.points import UnrepresentableError, point_line

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass
class Span:
    """The offsets of one partition in a batch.

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


@dataclass
class Results:
    """One consumed batch."""

    lines: list[bytes] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """The record behind each line."""
    ids: list[str] = field(default_factory=list)
    """The pair id of each line."""
    unrepresentable: list[tuple[Message, str, str | None]] = field(default_factory=list)
    """Records without a line, each with the reason and, if it could be read, the pair id."""
    spans: dict[int, Span] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of records in the batch."""
        return len(self.lines) + len(self.unrepresentable)

    def add(self, message: Message, measurement: str, time_unit: str) -> None:
        """Convert a record to its line, or record why it cannot be converted; see `point_line`."""
        value, identity = message.value(), None
        try:
            if value is None:
                raise UnrepresentableError("the value is null")
            pair = decode_joined(value)
            identity = pair.id
            line = point_line(pair, measurement, time_unit)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnrepresentableError) as error:
            self.unrepresentable.append((message, str(error), identity))
        else:
            self.lines.append(line)
            self.messages.append(message)
            self.ids.append(identity)
