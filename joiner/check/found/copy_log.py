"""Reads from Kafka what has been repartitioned: the committed offsets, the copies and their originals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from confluent_kafka import KafkaException

from broker.kafka.topics import topic_facts
from broker.wire.origin import ORIGIN_HEADER, Origin, decode_origin
from joiner.check.found.evidence import EvidenceError, Message
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import describe, log_range, make_admin, make_reader, read_to_end
from joiner.runtime.repartition.prior import origin_header
from joiner.runtime.repartition.progress import decode_progress
from joiner.runtime.repartition.status import committed_offsets

if TYPE_CHECKING:
    from confluent_kafka import Message as KafkaMessage

    from joiner.runtime.settings import JoinerSettings


class Committed(NamedTuple):
    """Up to where a partition has been copied, and where that began."""

    start: int
    end: int


class Copy(NamedTuple):
    """A copy, and the place of its original."""

    origin: Origin
    message: Message


class CopyEvidence(Protocol):
    """What has been repartitioned. Raises `EvidenceError` if it cannot be read."""

    def committed(self, topic: str) -> Mapping[int, Committed]:
        """Return what has been copied of a topic, by partition. Partitions of which nothing was copied are left out."""
        ...

    def copies(self, target: str) -> Iterator[Copy]:
        """Yield the committed copies in a repartition topic, by partition and in order."""
        ...

    def first_offset(self, topic: str, partition: int) -> int:
        """Return the first offset that retention has left."""
        ...

    def originals(self, topic: str, partition: int, begin: int, end: int) -> Iterator[Message]:
        """Yield the committed messages of a topic between two offsets."""
        ...


class CopyLog:
    """Reads from Kafka. See `CopyEvidence`."""

    def __init__(self, settings: JoinerSettings) -> None:
        self._settings, self._clock = settings, SystemClock()
        self._admin = make_admin(settings.kafka)
        self._consumer = make_reader(settings.kafka, settings.repartition_group)

    def committed(self, topic: str) -> Mapping[int, Committed]:
        """See `CopyEvidence.committed`."""
        with _explaining(topic):
            facts = topic_facts(self._admin, [topic])
            if topic not in facts:
                message = f"there is no topic {topic}, which has repartition = true"
                raise EvidenceError(message)
            places = committed_offsets(self._consumer, topic, facts[topic].partitions)
        found = {}
        for place in places:
            if place.offset >= 0:
                progress = decode_progress(place.metadata)
                found[place.partition] = Committed(place.offset if progress is None else progress.start, place.offset)
        return found

    def copies(self, target: str) -> Iterator[Copy]:
        """See `CopyEvidence.copies`."""
        for partition in range(self._settings.topics.partitions):
            for message in self._read(target, partition, 0, None):
                origin = _origin_of(message, target, partition)
                if origin is not None:
                    yield Copy(origin, _message(message, target, partition))

    def first_offset(self, topic: str, partition: int) -> int:
        """See `CopyEvidence.first_offset`."""
        with _explaining(topic):
            return log_range(self._consumer, topic, partition)[0]

    def originals(self, topic: str, partition: int, begin: int, end: int) -> Iterator[Message]:
        """See `CopyEvidence.originals`."""
        return (_message(one, topic, partition) for one in self._read(topic, partition, begin, end))

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _read(self, topic: str, partition: int, begin: int, end: int | None) -> Iterator[KafkaMessage]:
        with _explaining(topic):
            low, high = log_range(self._consumer, topic, partition)
            begin, end = max(low, begin), high if end is None else end
            if begin < end:
                yield from read_to_end(self._consumer, self._clock, topic, partition, begin, end)


@contextmanager
def _explaining(topic: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        message = f"{topic} cannot be read: {describe(error)}"
        raise EvidenceError(message) from error


def _origin_of(message: KafkaMessage, topic: str, partition: int) -> Origin | None:
    """Return the place of the original, or None if the message is no copy."""
    if (value := origin_header(message)) is None:
        return None
    try:
        return decode_origin(value)
    except ValueError as error:
        where = f"{topic} partition {partition} offset {message.offset()}"
        fault = f"the header {ORIGIN_HEADER} of {where}: {error}"
        raise EvidenceError(fault) from error


def _message(message: KafkaMessage, topic: str, partition: int) -> Message:
    return Message(topic, partition, message.offset() or 0, message.timestamp()[1], message.key(), message.value())
