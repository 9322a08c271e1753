"""What a verdict rests on: checkpoints, input logs, output logs. Plain data, wherever it comes from.

`joiner.check.found.kafka_log` reads it from Kafka; tests make a `RecordedEvidence` by hand. The order of asking
matters while the joiner runs: the vector C before any output, C once more (C') after the outputs. Whatever
was found must then hold all of E(C) and nothing outside E(C'), and with a joiner at rest C' = C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.settings import TopicSettings
    from joiner.runtime.model import Checkpoint


class EvidenceError(Exception):
    """The check cannot be made, or not any more; ``str`` says what is missing, where, and what to do."""


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
        """Where to look."""
        return f"{self.topic} partition {self.partition} offset {self.offset}"


class Evidence(Protocol):
    """What `verify.outputs` asks for, in this order: progress, late, unmatched, rejected, then unit by unit."""

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """The newest committed checkpoint before any output was read: C. None: the unit has not
        begun.
        """
        ...

    def late(self) -> Iterable[Message]:
        """The late topic, all partitions."""
        ...

    def rejected(self) -> Iterable[Message]:
        """The dead letters, all partitions."""
        ...

    def unmatched(self) -> Iterable[Message]:
        """The unmatched records, all partitions; nothing where no join tells any."""
        ...

    def out(self, unit: int) -> Iterable[Message]:
        """The unit's partition of the results."""
        ...

    def progress_after(self, unit: int) -> Checkpoint | None:
        """The newest committed checkpoint now that all outputs have been read: C'."""
        ...

    def inputs(self, unit: int, topic: str, start: int, stop: int) -> Iterable[Message]:
        """The unit's partition of an input topic from ``start`` up to and without ``stop``.

        Raises `EvidenceError` where the log does not hold all of it any more.
        """
        ...

    def whole_input(self, unit: int, topic: str) -> Iterable[Message]:
        """The unit's partition of an input topic, all that is there."""
        ...

    def unread(self, unit: int, topic: str, stop: int) -> int:
        """Offsets of an input log at and after ``stop`` (control records of transactions count)."""
        ...


@dataclass
class RecordedEvidence:
    """Evidence made by hand: logs as lists of messages, checkpoints by unit."""

    progress_by_unit: dict[int, Checkpoint]
    messages: list[Message]
    topics: TopicSettings
    progress_later: dict[int, Checkpoint] = field(default_factory=dict)

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """See `Evidence.progress`."""
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
