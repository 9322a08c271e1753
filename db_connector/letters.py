"""The dead letters of the connector: what the database cannot hold or will not take, with the reason.

A letter is delivered before the offset of its record is committed; a process that is killed in between
writes it again, so one record may have several equal letters and never none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from broker.client_log import client_logger
from broker.settings import KafkaSettings
from broker.wire import encode, reject

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

SOURCE: Final = "db_connector"

log = logging.getLogger(__name__)


class DeadLetters:
    """Producer of the dead-letter topic."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._lost: KafkaError | None = None
        # No timeout for a letter: while Kafka is away nothing else goes on either.
        config = kafka.producer_config(linger_ms=5, message_timeout_ms=0, client_id=SOURCE)
        self._producer = Producer(config, logger=client_logger("db_connector.librdkafka"))

    def send(self, message: Message, reason: str, identity: str | None) -> None:
        """Queue the letter of a record. ``identity`` is its pair's id, None where it could not be read."""
        letter = reject(
            message.value(),
            reason,
            source=SOURCE,
            topic=message.topic() or "",
            partition=_known(message.partition()),
            offset=_known(message.offset()),
            identity=identity,
        )
        value = encode(letter)
        while True:
            try:
                self._producer.produce(self._topic, value, key=message.key(), on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def delivered(self, timeout_s: float) -> bool:
        """Whether Kafka has all letters, after at most ``timeout_s``. Raises KafkaFailureError for a lost."""
        outstanding = self._producer.flush(timeout_s)
        if self._lost is not None:
            raise KafkaFailureError(f"a dead letter was refused by Kafka: {self._lost.str()}")
        return outstanding == 0

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._lost = error


class KafkaFailureError(Exception):
    """Something that Kafka will not do; ``str`` says what and what to do about it."""


def _known(number: int | None) -> int:
    return -1 if number is None else number
