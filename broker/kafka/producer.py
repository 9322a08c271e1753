"""A producer for records that must not be lost: it retries without limit and reports each acknowledgement.

While Kafka is unavailable, records wait in librdkafka's queue, and librdkafka retries. However, if a restarting broker
returns metadata without a leader for a partition, librdkafka may never send to that partition again
(confluentinc/librdkafka#5430; seen with Kafka 4.3 and librdkafka 2.16). Therefore, if a record waits too long, the
underlying producer is replaced and all unconfirmed records are sent again in order. Some records may arrive twice.

This timeout is enforced here, and librdkafka's own message timeout is disabled: if librdkafka dropped a record just
before Kafka came back, later records would overtake it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from broker.kafka.client_log import answered
from broker.kafka.errors import unwrap_fatal_errors
from broker.settings import KafkaSettings

T = TypeVar("T")

PATIENCE_S: Final = 30.0
"""How long the oldest record may wait for Kafka before the producer is replaced. Kafka restarts faster than that."""

_QUEUE_MESSAGES_MAX: Final = 2_000_000
_QUEUE_KIB_MAX: Final = 1024 * 1024
"""Size limit of librdkafka's queue. Callers never have this much in flight, even though one event can become thousands
of records, each with its own overhead."""

_QUEUE_FULL_WAIT_S: Final = 0.05
_LAST_FLUSH_S: Final = 0.5


class DeliveryError(Exception):
    """Raised if Kafka has refused a record, or the producer has failed. The message gives the reason."""


class Outgoing(NamedTuple, Generic[T]):
    """A record to send. The producer passes ``ticket`` to ``confirm`` once Kafka has acknowledged the record.

    Of the records that are sent to a topic, either all or none have ``headers``.
    """

    key: bytes | None
    value: bytes
    ticket: T
    headers: Sequence[tuple[str, bytes]] = ()


class LastingProducer(Generic[T]):
    """Sends records and retries without limit. `poll` calls ``confirm`` with the ticket of each acknowledged record."""

    def __init__(
        self,
        kafka: KafkaSettings,
        log: logging.Logger,
        confirm: Callable[[T], None],
        *,
        patience_s: float = PATIENCE_S,
        **more: str | float | bool,
    ) -> None:
        """Connect to Kafka. ``log`` is the logger for the Kafka client.

        ``more``: further librdkafka settings, named with ``_`` in place of ``.``.
        """
        self._log = log
        self._confirm = confirm
        self._patience_s = patience_s
        self._config = kafka.producer_config(
            message_timeout_ms=0,
            queue_buffering_max_messages=_QUEUE_MESSAGES_MAX,
            queue_buffering_max_kbytes=_QUEUE_KIB_MAX,
            # With idempotence, the send queue must not apply backpressure.
            queue_buffering_backpressure_threshold=1,
            socket_nagle_disable=True,
            **more,
        )
        self._unconfirmed: dict[int, tuple[str, Outgoing[T]]] = {}
        self._count = 0
        self._fault: str | None = None
        self._oldest: int | None = None
        self._oldest_since_s = 0.0
        self._producer = self._make()

    def __len__(self) -> int:
        """Return the number of records that Kafka has not confirmed."""
        return len(self._unconfirmed)

    def send(self, topic: str, records: Sequence[Outgoing[T]]) -> None:
        """Queue the records in order. Block only while the queue is full. Raises `DeliveryError`."""
        first = self._count
        self._count += len(records)
        numbered = dict(zip(range(first, self._count), ((topic, record) for record in records), strict=True))
        self._unconfirmed |= numbered
        if not self._produce(topic, numbered):
            self._replace_producer()

    def poll(self, timeout_s: float) -> None:
        """Process Kafka's acknowledgements. Wait up to ``timeout_s`` for the first one. Raises `DeliveryError`."""
        waiting = len(self._unconfirmed)
        self._serve(self._producer.poll, timeout_s)
        if len(self._unconfirmed) < waiting:
            answered(self._log)
        if self._fault is not None:
            raise DeliveryError(self._fault)
        if self._is_stuck():
            self._replace_producer()

    def flush(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for Kafka to acknowledge all records. Return whether it has.

        Raises `DeliveryError`.
        """
        self._serve(self._producer.flush, timeout_s)
        self.poll(0)
        return not self._unconfirmed

    def close(self) -> None:
        """Close the producer and drop unconfirmed records. Some of them may still arrive."""
        self._producer.purge()

    def _make(self) -> Producer:
        return Producer({**self._config, "logger": self._log})

    @staticmethod
    def _serve(call: Callable[[float], object], timeout_s: float) -> None:
        """Call a method that calls the callbacks. Raises `DeliveryError` if the producer has failed.

        librdkafka itself logs and retries after all other errors, such as an unavailable broker.
        """
        try:
            with unwrap_fatal_errors():
                call(timeout_s)
        except KafkaException as error:
            reason = f"the Kafka producer failed: {error.args[0].str()}"
            raise DeliveryError(reason) from error

    def _is_stuck(self) -> bool:
        """Return whether the oldest unconfirmed record has been the same for longer than ``patience_s``."""
        oldest = next(iter(self._unconfirmed), None)
        now_s = time.monotonic()
        if oldest != self._oldest:
            self._oldest, self._oldest_since_s = oldest, now_s
        return oldest is not None and now_s - self._oldest_since_s > self._patience_s

    def _replace_producer(self) -> None:
        is_queued = False
        while not is_queued:
            old, self._producer = self._producer, self._make()
            # Give the old producer a moment to receive outstanding acknowledgements: the records that it still confirms
            # need not be sent again.
            old.purge()
            with suppress(KafkaException), unwrap_fatal_errors():
                old.flush(_LAST_FLUSH_S)
            self._log.warning(
                "a record has waited for Kafka for more than %g s; reconnecting and resending %d records",
                self._patience_s,
                len(self._unconfirmed),
            )
            self._oldest_since_s = time.monotonic()
            unconfirmed = list(self._unconfirmed.items())
            is_queued = all(self._produce(topic, {number: (topic, record)}) for number, (topic, record) in unconfirmed)

    def _produce(self, topic: str, numbered: Mapping[int, tuple[str, Outgoing[T]]]) -> bool:
        """Add records for one topic to the queue. Return False if the queue is full and the producer is stuck."""
        if any(record.headers for _, record in numbered.values()):
            return all(self._produce_with_headers(topic, number, record) for number, (_, record) in numbered.items())
        delivered = self._delivered
        batch: list[dict[str, Any]] = [
            {"key": record.key, "value": record.value, "callback": partial(delivered, number, record.ticket)}
            for number, (_, record) in numbered.items()
        ]
        while batch and self._producer.produce_batch(topic, batch) < len(batch):
            batch = [message for message in batch if "_error" in message]
            for message in batch:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes have such names
                    reason = f"Kafka does not accept a record for {topic}: {error.str()}"
                    raise DeliveryError(reason)
            self._serve(self._producer.poll, _QUEUE_FULL_WAIT_S)
            if self._is_stuck():
                return False
        return True

    def _produce_with_headers(self, topic: str, number: int, record: Outgoing[T]) -> bool:
        """Add a record to the queue, as `_produce` does, which cannot add headers."""
        delivered = partial(self._delivered, number, record.ticket)
        while True:
            try:
                self._producer.produce(
                    topic, record.value, record.key, on_delivery=delivered, headers=list(record.headers)
                )
                return True
            except BufferError:
                self._serve(self._producer.poll, _QUEUE_FULL_WAIT_S)
                if self._is_stuck():
                    return False
            except KafkaException as error:
                reason = f"Kafka does not accept a record for {topic}: {error.args[0].str()}"
                raise DeliveryError(reason) from error

    def _delivered(self, number: int, ticket: T, error: KafkaError | None, message: Message) -> None:
        if error is None:
            if self._unconfirmed.pop(number, None) is not None:
                self._confirm(ticket)
        elif error.code() not in _PURGED and self._fault is None:
            self._fault = f"Kafka refused a record for {message.topic()}: {error.str()}"


_PURGED: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - librdkafka's own codes have such names
)
