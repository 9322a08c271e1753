"""The dead letters of the connector: results that the database cannot represent or refuses, with the reason.

A dead letter is delivered before the offset of its record is committed. After a kill in between it is written again:
a record may have several equal dead letters, but never none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.kafka.client_log import client_logger
from broker.kafka.producer import LastingProducer, Outgoing
from broker.wire.records import encode, reject

if TYPE_CHECKING:
    from confluent_kafka import Message

    from broker.settings import KafkaSettings

SOURCE: Final = "db_connector"

_KEY_BYTES_MAX: Final = 64 * 1024
_IDENTITY_LENGTH_MAX: Final = 1024
"""A longer key is omitted, and a longer id is replaced by the record's topic, partition and offset, so that a dead
letter always stays below Kafka's size limit."""


class DeadLetterWriter:
    """Writes dead letters to their topic."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._producer = LastingProducer[None](
            kafka, client_logger("db_connector.librdkafka"), lambda _ticket: None, linger_ms=5, client_id=SOURCE
        )

    def send(self, message: Message, reason: str, identity: str | None) -> None:
        """Queue the dead letter of a record. ``identity`` is the id of its pair; None if it could not be read."""
        dead_letter = reject(
            message.value(),
            reason,
            source=SOURCE,
            topic=message.topic() or "",
            partition=_known(message.partition()),
            offset=_known(message.offset()),
            identity=identity if identity is None or len(identity) <= _IDENTITY_LENGTH_MAX else None,
        )
        key = message.key()
        if key is not None and len(key) > _KEY_BYTES_MAX:
            key = None
        self._producer.send(self._topic, [Outgoing(key, encode(dead_letter), None)])

    def delivered(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for all confirmations; return whether Kafka has all dead letters.

        Raises `broker.kafka.producer.DeliveryError`.
        """
        return self._producer.flush(timeout_s)


def _known(number: int | None) -> int:
    return -1 if number is None else number
