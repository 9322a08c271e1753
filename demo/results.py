"""Reads the messages in the result topic."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from confluent_kafka import TopicPartition

from joiner.runtime.kafka.clients import EOF_CODE, log_range, make_consumer, raise_for
from joiner.runtime.settings import JoinerSettings


class Result(NamedTuple):
    """The value of a message in the result topic, and its position."""

    unit: int
    offset: int
    value: bytes


def read_results(settings: JoinerSettings) -> Generator[Result, None, None]:
    """Yield every committed message in the result topic, up to the topic's end. Raises `KafkaException`."""
    topic, units = settings.topics.out, range(settings.topics.partitions)
    consumer = make_consumer(settings.kafka, "demo", enable_partition_eof=True)
    try:
        consumer.assign([TopicPartition(topic, unit, log_range(consumer, topic, unit)[0]) for unit in units])
        unread = set(units)
        while unread:
            for message in consumer.consume(10_000, 1.0):
                unit = int(message.partition() or 0)
                error = message.error()
                if error is not None and error.code() == EOF_CODE:
                    unread.discard(unit)
                    continue
                raise_for(message)
                yield Result(unit, int(message.offset() or 0), message.value() or b"")
    finally:
        consumer.close()
