"""Defines the data that a check reads: checkpoints, input logs and output logs.

`joiner.check.found.kafka_log` reads it from Kafka; tests create a `RecordedEvidence`. If the joiner is running during
the check, the order of reads matters: a unit's vector of consumed offsets is read once before any output (as C), and
again after all of the unit's outputs (as C'). The outputs must contain all of E(C), the output expected at C, and
nothing outside E(C'). If the joiner is at rest, C' = C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.settings import TopicSettings
    from joiner.runtime.model import Checkpoint


class EvidenceError(Exception):
    """The check cannot be carried out. The message says why and, where possible, what to do."""


class Message(NamedTuple):
    """A committed Kafka record. ``time_ms`` is the broker's append time in ms."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> str:
        """The topic, partition and offset, as text."""
        return f"{self.topic} partition {self.partition} offset {self.offset}"


class Evidence(Protocol):
    """The data for `verify.outputs`, read in this order: checkpoints, late, unmatched, rejected, then unit by unit."""

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """Return C, the newest checkpoint committed before any output was read, or None if there is none."""
        ...

    def late(self) -> Iterable[Message]:
        """Return the late records from all partitions."""
        ...

    def rejected(self) -> Iterable[Message]:
        """Return the dead letters from all partitions."""
        ...

    def unmatched(self) -> Iterable[Message]:
        """Return the unmatched records from all partitions. Empty if no join emits them."""
        ...

    def out(self, unit: int) -> Iterable[Message]:
        """Return the results in the unit's partition."""
        ...

    def checkpoint_after(self, unit: int) -> Checkpoint | None:
        """Return C', the newest committed checkpoint, or None. It is read after all of the unit's outputs."""
        ...

    def inputs(self, unit: int, topic: str, start: int, stop: int) -> Iterable[Message]:
        """Return the unit's partition of an input topic, from offset ``start`` up to but excluding ``stop``.

        Raises `EvidenceError` if the log no longer contains all of it.
        """
        ...

    def whole_input(self, unit: int, topic: str) -> Iterable[Message]:
        """Return all messages still in the unit's partition of an input topic."""
        ...

    def unread(self, unit: int, topic: str, stop: int) -> int:
        """Return the number of offsets in an input log from ``stop`` on, including transaction markers."""
        ...


@dataclass
class RecordedEvidence:
    """Evidence held in memory: logs as lists of messages, and checkpoints by unit."""

    checkpoint_by_unit: dict[int, Checkpoint]
    messages: list[Message]
    topics: TopicSettings
    checkpoint_later: dict[int, Checkpoint] = field(default_factory=dict)

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """See `Evidence.checkpoint`."""
        return self.checkpoint_by_unit.get(unit)

    def checkpoint_after(self, unit: int) -> Checkpoint | None:
        """See `Evidence.checkpoint_after`."""
        return self.checkpoint_later.get(unit, self.checkpoint_by_unit.get(unit))

    def late(self) -> Iterable[Message]:
        """See `Evidence.late`."""
        return [message for message in self.messages if message.topic == self.topics.late]

    def rejected(self) -> Iterable[Message]:
        """See `Evidence.rejected`."""
        return [message for message in self.messages if message.topic == self.topics.rejected]

    def unmatched(self) -> Iterable[Message]:
        """See `Evidence.unmatched`."""
        return [message for message in self.messages if message.topic == self.topics.unmatched]

    def out(self, unit: int) -> Iterable[Message]:
        """See `Evidence.out`."""
        return [m for m in self.messages if m.topic == self.topics.out and m.partition == unit]

    def inputs(self, unit: int, topic: str, start: int, stop: int) -> Iterable[Message]:
        """See `Evidence.inputs`."""
        return [message for message in self.whole_input(unit, topic) if start <= message.offset < stop]

    def whole_input(self, unit: int, topic: str) -> Iterable[Message]:
        """See `Evidence.whole_input`."""
        found = [m for m in self.messages if m.topic == topic and m.partition == unit]
        return sorted(found, key=lambda message: message.offset)

    def unread(self, unit: int, topic: str, stop: int) -> int:
        """See `Evidence.unread`."""
        return sum(message.offset >= stop for message in self.whole_input(unit, topic))
