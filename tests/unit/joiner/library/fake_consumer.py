"""A consumer of the topics of replicas that returns what a test has queued."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

AWAY = KafkaError._TRANSPORT  # noqa: SLF001 - the public name of the constant


class FakeMessage:
    """A message, or an error event."""

    def __init__(self, topic: str, offset: int, value: bytes | None, error: KafkaError | None = None) -> None:
        self._parts = topic, offset, value, error

    def topic(self) -> str:
        return self._parts[0]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._parts[1]

    def value(self) -> bytes | None:
        return self._parts[2]

    def timestamp(self) -> tuple[int, int]:
        return 1, 10 * self._parts[1]

    def error(self) -> KafkaError | None:
        return self._parts[3]


class FakeConsumer:
    """Returns what is in its queue, except of partitions that are paused."""

    def __init__(self, *_config: Any) -> None:
        self.queue: deque[FakeMessage] = deque()
        self.paused: set[str] = set()
        self.assigned: list[tuple[str, int, int]] = []
        self.ends: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.unknown = AWAY
        """The error with which Kafka answers for topics without messages."""
        self.requests = 0
        """How often it was asked for ends."""

    def send(self, topic: str, *values: bytes | None) -> None:
        for value in values:
            offset = self.ends.get(topic, 0)
            self.ends[topic] = offset + 1
            self.queue.append(FakeMessage(topic, offset, value))

    def fail(self, topic: str, code: int) -> None:
        self.queue.append(FakeMessage(topic, 0, None, KafkaError(code)))

    def assign(self, places: Iterable[TopicPartition]) -> None:
        self.assigned = [(place.topic, place.partition, place.offset) for place in places]

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self.paused |= {place.topic for place in places}

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self.paused -= {place.topic for place in places}

    def consume(self, _count: int, _timeout_s: float) -> list[FakeMessage]:
        found = [message for message in self.queue if message.topic() not in self.paused]
        self.queue = deque(message for message in self.queue if message.topic() in self.paused)
        return found

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[SimpleNamespace]:
        assert timeout > 0
        self.requests += 1
        found = [self._end(place) for place in places]
        if all(place.error for place in found):
            raise KafkaException(found[0].error)
        return found

    def _end(self, place: TopicPartition) -> SimpleNamespace:
        end = self.ends.get(place.topic)
        error = KafkaError(self.unknown) if end is None else None
        return SimpleNamespace(topic=place.topic, partition=place.partition, offset=end, error=error)

    def close(self) -> None:
        pass
