"""The data that a check reads: checkpoints, input logs, output logs.

`joiner.check.found.kafka_log` reads it from Kafka; tests create a `RecordedEvidence`. While the joiner runs, the order
of reads matters: the vector C before any output, and C again (C') after the outputs. The outputs must then contain all
of E(C) and nothing outside E(C'). With a joiner at rest, C' = C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.settings import TopicSettings
    from joiner.runtime.model import Checkpoint


class EvidenceError(Exception):
    """The check is not possible, or not any more. The message says what is missing, where, and what to do."""


class Message(NamedTuple):
    """A committed Kafka record; ``time_ms`` is the broker's append time."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> str:
        """Topic, partition and offset."""
        return f"{self.topic} partition {self.partition} offset {self.offset}"


class Evidence(Protocol):
    """The reads of `verify.outputs`, in this order: checkpoints, late, unmatched, rejected, then unit by unit."""

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """C: the newest committed checkpoint before any output was read. None: the unit has not begun."""
        ...

    def late(self) -> Iterable[Message]:
        """The late topic, all partitions."""
        ...

    def rejected(self) -> Iterable[Message]:
        """The dead letters, all partitions."""
        ...

    def unmatched(self) -> Iterable[Message]:
        """The unmatched records, all partitions; none if no join emits them."""
        ...

    def out(self, unit: int) -> Iterable[Message]:
        """The unit's partition of the results."""
        ...

    def progress_after(self, unit: int) -> Checkpoint | None:
        """C': the newest committed checkpoint, after all outputs have been read."""
        ...

    def inputs(self, unit: int, topic: str, start: int, stop: int) -> Iterable[Message]:
        """The unit's partition of an input topic from ``start`` to ``stop``, exclusive.

        Raises `EvidenceError` if the log does not hold all of it any more.
        """
        ...

    def whole_input(self, unit: int, topic: str) -> Iterable[Message]:
        """The unit's partition of an input topic, as far as the log holds it."""
        ...

    def unread(self, unit: int, topic: str, stop: int) -> int:
        """The number of offsets of an input log from ``stop`` on, including control records of transactions."""
        ...


@dataclass
class RecordedEvidence:
    """Evidence in memory: logs as lists of messages, checkpoints by unit."""

    progress_by_unit: dict[int, Checkpoint]
    messages: list[Message]
    topics: TopicSettings
    progress_later: dict[int, Checkpoint] = field(default_factory=dict)

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """See `Evidence.checkpoint`."""
        return self.progress_by_unit.get(unit)

    def progress_after(self, unit: int) -> Checkpoint | None:
        """See `Evidence.progress_after`."""
        return self.progress_later.get(unit, self.progress_by_unit.get(unit))

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
