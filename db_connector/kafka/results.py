"""A consumed batch: the line of each result, the results that have none, and the offsets it spans.

No Kafka client and no database here: messages in, lines and reasons out.
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

    ``first`` and ``last`` are -1 if the batch has none of its records, but the end of the partition.
    """

    assignment: int
    """The assignment under which they were consumed, see `reader`."""
    first: int = -1
    last: int = -1
    next_offset: int = -1

    def extend(self, offset: int) -> None:
        """Add the record at ``offset``."""
        self.first = offset if self.first < 0 else self.first
        self.last, self.next_offset = offset, offset + 1


@dataclass
class Results:
    """One consumed batch."""

    lines: list[bytes] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """The record of each line."""
    ids: list[str] = field(default_factory=list)
    """The pair id of each line."""
    unrepresentable: list[tuple[Message, str, str | None]] = field(default_factory=list)
    """Records without a line: the reason, and the pair id if it could be read."""
    spans: dict[int, Span] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """How many records the batch has."""
        return len(self.lines) + len(self.unrepresentable)

    def add(self, message: Message, measurement: str, unit: str) -> None:
        """Convert a record to its line, or note why it has none; see `point_line`."""
        value, identity = message.value(), None
        try:
            if value is None:
                raise UnrepresentableError("the value is null")
            pair = decode_joined(value)
            identity = pair.id
            line = point_line(pair, measurement, unit)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnrepresentableError) as error:
            self.unrepresentable.append((message, str(error), identity))
        else:
            self.lines.append(line)
            self.messages.append(message)
            self.ids.append(identity)
