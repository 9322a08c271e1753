"""A producer for records that must arrive: it reports each confirmation, and never gives up waiting.

While Kafka is unavailable, records wait in the client, which retries by itself. But a producer of librdkafka that is
told during a broker's restart that a partition has no leader may never send to it again (confluentinc/librdkafka#5430;
seen with Kafka 4.3 and librdkafka 2.16). So if a record waits for too long, the producer is replaced, and everything
unconfirmed is sent again in its order. Some records may arrive twice.

The time is measured here, and the client's own timeout is infinite: if it gave up a record, the records behind it would
overtake it should Kafka return at that moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from confluent_kafka import KafkaError, Message, Producer

from broker.kafka.client_log import answered
from broker.settings import KafkaSettings

T = TypeVar("T")

PATIENCE_S: Final = 30.0
"""How long the oldest record waits for Kafka before the producer is replaced: longer than a restart takes."""

_QUEUE_MESSAGES_MAX: Final = 2_000_000
_QUEUE_KIB_MAX: Final = 1024 * 1024
"""Above what callers have in flight: one event may become thousands of records, each with its own overhead."""

_QUEUE_FULL_WAIT_S: Final = 0.05
_LAST_FLUSH_S: Final = 0.5


class DeliveryError(Exception):
    """Kafka refuses a record, or the producer has failed; ``str`` says why."""


class Outgoing(NamedTuple, Generic[T]):
    """A record to send; ``ticket`` is passed to ``confirm`` when Kafka has it."""

    key: bytes | None
    value: bytes
    ticket: T


class LastingProducer(Generic[T]):
    """Sends records; ``confirm`` is called from within `poll` with the ticket of each record that Kafka has."""

    def __init__(
        self,
        kafka: KafkaSettings,
        log: logging.Logger,
        confirm: Callable[[T], None],
        *,
        patience_s: float = PATIENCE_S,
        **more: str | float | bool,
    ) -> None:
        """``log`` receives the client's lines; ``more`` are its settings, with ``_`` for ``.``."""
        self._log = log
        self._confirm = confirm
        self._patience_s = patience_s
        self._config = kafka.producer_config(
            message_timeout_ms=0,
            queue_buffering_max_messages=_QUEUE_MESSAGES_MAX,
            queue_buffering_max_kbytes=_QUEUE_KIB_MAX,
            # With idempotence, the send queue must not apply backpressure.
            queue_buffering_backpressure_threshold=1,
            reconnect_backoff_max_ms=2_000,
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
        """The number of records that Kafka has not confirmed."""
        return len(self._unconfirmed)

    def send(self, topic: str, records: Sequence[Outgoing[T]]) -> None:
        """Queue the records in their order. Blocks only if the queue is full. Raises `DeliveryError`."""
        first = self._count
        self._count += len(records)
        numbered = dict(zip(range(first, self._count), ((topic, record) for record in records), strict=True))
        self._unconfirmed |= numbered
        if not self._produce(topic, numbered):
            self._replace_producer()

    def poll(self, timeout_s: float) -> None:
        """Process confirmations, waiting for the first. Raises `DeliveryError`."""
        waiting = len(self._unconfirmed)
        self._producer.poll(timeout_s)
        if len(self._unconfirmed) < waiting:
            answered(self._log)
        if self._fault is not None:
            raise DeliveryError(self._fault)
        if self._is_stuck():
            self._replace_producer()

    def flush(self, timeout_s: float) -> bool:
        """Whether Kafka has everything, after at most ``timeout_s``. Raises `DeliveryError`."""
        self._producer.flush(timeout_s)
        self.poll(0)
        return not self._unconfirmed

    def close(self) -> None:
        """Drop unconfirmed records: some of them may still arrive."""
        self._producer.purge()

    def _make(self) -> Producer:
        return Producer({**self._config, "error_cb": self._note_error, "logger": self._log})

    def _is_stuck(self) -> bool:
        """Whether one record has been the oldest for too long."""
        oldest = next(iter(self._unconfirmed), None)
        now_s = time.monotonic()
        if oldest != self._oldest:
            self._oldest, self._oldest_since_s = oldest, now_s
        return oldest is not None and now_s - self._oldest_since_s > self._patience_s

    def _replace_producer(self) -> None:
        is_queued = False
        while not is_queued:
            old, self._producer = self._producer, self._make()
            # What the old producer learns to have arrived need not be sent again.
            old.purge()
            old.flush(_LAST_FLUSH_S)
            self._log.warning(
                "Kafka accepted no record for %g s; reconnecting, %d records are sent again",
                self._patience_s,
                len(self._unconfirmed),
            )
            self._oldest_since_s = time.monotonic()
            unconfirmed = list(self._unconfirmed.items())
            is_queued = all(self._produce(topic, {number: (topic, record)}) for number, (topic, record) in unconfirmed)

    def _produce(self, topic: str, numbered: Mapping[int, tuple[str, Outgoing[T]]]) -> bool:
        """Queue records, all to one topic; false if the queue was full and the producer is stuck."""
        delivered = self._delivered
        batch: list[dict[str, Any]] = [
            {"key": record.key, "value": record.value, "callback": partial(delivered, number, record.ticket)}
            for number, (_, record) in numbered.items()
        ]
        while batch and self._producer.produce_batch(topic, batch) < len(batch):
            batch = [message for message in batch if "_error" in message]
            for message in batch:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes are named so
                    reason = f"Kafka does not accept a record for {topic}: {error.str()}"
                    raise DeliveryError(reason)
            self._producer.poll(_QUEUE_FULL_WAIT_S)
            if self._is_stuck():
                return False
        return True

    def _delivered(self, number: int, ticket: T, error: KafkaError | None, message: Message) -> None:
        if error is None:
            if self._unconfirmed.pop(number, None) is not None:
                self._confirm(ticket)
        elif error.code() not in _PURGED and self._fault is None:
            self._fault = f"Kafka refused a record for {message.topic()}: {error.str()}"

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fault = f"the Kafka producer failed: {error.str()}"
        # Everything else (an unavailable broker) is retried, and the client logs it.


_PURGED: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - librdkafka's own codes are named so
)
