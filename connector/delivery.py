"""The producer towards Kafka: records go out in batches, each confirmation is told to the caller.

librdkafka retries by itself for as long as it takes (no time limit for a message): while Kafka is away
records wait, the ledger fills, and MQTT is not acknowledged. What it reports as failed cannot succeed by
waiting, so a single failure ends the service; the messages concerned are unacknowledged and come again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from broker.client_log import client_logger
from broker.settings import KafkaSettings
from connector.acknowledgement import Ticket
from connector.settings import ConnectorSettings

KAFKA_LOG: Final = client_logger("connector.librdkafka")

_QUEUE_MESSAGES_MAX: Final = 2_000_000
_QUEUE_KIB_MAX: Final = 1024 * 1024
"""Above what the ledger admits: one event may become thousands of records, and each has its own overhead."""

_FULL_WAIT_S: Final = 0.05


class DeliveryError(Exception):
    """Kafka will not take a record, or the producer is at its end; ``str`` says why."""


class Outgoing(NamedTuple):
    """A record on its way; the ticket is of the MQTT message it came from."""

    key: bytes | None
    value: bytes
    ticket: Ticket


class RecordProducer:
    """Sends records; ``confirm`` is called with the ticket of each one that Kafka has, from within `poll`."""

    def __init__(self, kafka: KafkaSettings, connector: ConnectorSettings, confirm: Callable[[Ticket], None]) -> None:
        self._confirm = confirm
        self._fault: str | None = None
        config = kafka.producer_config(
            linger_ms=connector.linger / 1e6,
            compression_type=connector.compression,
            batch_size=1024 * 1024,
            message_timeout_ms=0,
            queue_buffering_max_messages=_QUEUE_MESSAGES_MAX,
            queue_buffering_max_kbytes=_QUEUE_KIB_MAX,
            queue_buffering_backpressure_threshold=1,
            reconnect_backoff_max_ms=2_000,
            socket_nagle_disable=True,
        )
        self._producer = Producer({**config, "error_cb": self._note_error, "logger": KAFKA_LOG})

    def send(self, topic: str, records: list[Outgoing]) -> None:
        """Queue the records in their order. Blocks only where the queue is full. Raises `DeliveryError`."""
        delivered = self._delivered
        batch: list[dict[str, Any]] = [
            {"key": key, "value": value, "callback": partial(delivered, ticket)} for key, value, ticket in records
        ]
        while batch and self._producer.produce_batch(topic, batch) < len(batch):
            batch = [message for message in batch if "_error" in message]
            for message in batch:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes are named so
                    reason = f"Kafka does not take a record for {topic}: {error.str()}"
                    raise DeliveryError(reason)
            self.poll(_FULL_WAIT_S)

    def poll(self, timeout_s: float) -> None:
        """Hand on the confirmations that have come, waiting for the first. Raises `DeliveryError`."""
        self._producer.poll(timeout_s)
        if self._fault is not None:
            raise DeliveryError(self._fault)

    def close(self) -> None:
        """Drop what is still queued; the messages it came from are unacknowledged and come again."""
        self._producer.purge()

    def _delivered(self, ticket: Ticket, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._confirm(ticket)
        elif self._fault is None:
            self._fault = f"Kafka refused a record for {message.topic()}: {error.str()}"

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fault = f"the Kafka producer failed for good: {error.str()}"
        # Everything else (a broker away) is retried, and the library logs it.
