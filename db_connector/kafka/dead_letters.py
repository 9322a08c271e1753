"""Writes dead letters: results that the database cannot represent or has rejected, each with the reason.

A dead letter is delivered before its record's offset is committed. If the process is killed in between, the dead letter
is written again after the restart. Each rejected result therefore has one or more identical dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.kafka.client_log import client_logger
from broker.kafka.producer import LastingProducer, Outgoing
from broker.wire.records import encode, reject

if TYPE_CHECKING:
    from confluent_kafka import Message

    from broker.settings import KafkaSettings
    from db_connector.kafka.results import ResultRow

SOURCE: Final = "db_connector"

_KEY_BYTES_MAX: Final = 64 * 1024
_IDENTITY_LENGTH_MAX: Final = 1024
"""Maximum length of keys and ids. Longer keys are dropped, and longer ids are replaced by the record's topic, partition
and offset, so that every dead letter fits into Kafka's message size limit."""


class DeadLetterWriter:
    """Writes dead letters to their topic."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._producer = LastingProducer[None](
            kafka, client_logger("db_connector.librdkafka"), lambda _ticket: None, linger_ms=5, client_id=SOURCE
        )

    def send(self, message: Message | ResultRow, reason: str, identity: str | None) -> None:
        """Queue a dead letter for a result. ``identity``: the result's id, or None if it could not be read.

        Raises `broker.kafka.producer.DeliveryError`.
        """
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
        """Wait up to ``timeout_s`` for outstanding acknowledgements. Return whether all dead letters are acknowledged.

        Raises `broker.kafka.producer.DeliveryError`.
        """
        return self._producer.flush(timeout_s)


def _known(number: int | None) -> int:
    return -1 if number is None else number
