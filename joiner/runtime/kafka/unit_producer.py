"""The transactional producer of one unit, which also records where each transaction begins in each topic.

librdkafka 2.16 sends one request at a time to a partition, because an idempotent producer may have only five messages
in flight, or all messages of one request. While more messages are due, its thread polls without pausing until Kafka
answers. Therefore the producer is given no more messages of a topic at a time than one request can hold. Otherwise a
quarter of a busy joiner's CPU time would be lost.

`transaction` decides what is written, and in what order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from broker.kafka.native.library import Unavailable
from broker.kafka.native.writer import NativeWriter
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import (
    TRANSACTIONAL,
    commit,
    connect,
    flush,
    init_transactions,
    make_producer,
    poll,
    timed_out,
    within,
)
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Outgoing

_COMMIT_S: Final = 30.0
"""Time limit for a commit, and for a flush before it. If the Kafka client hangs for longer (see `broker.kafka`), it is
abandoned, and the unit continues with a new client."""

_OFFSETS_S: Final = 10.0
"""Time limit for sending the consumed offsets to Kafka, a request of only a few bytes."""

_RETURN_S: Final = 1.0
"""How much longer than its own time limit a call may take to return."""

_REQUEST_BYTES: Final = 950_000
"""Messages with this total size in bytes fit into one request, whose size `batch.size` limits to 1,000,000."""

_OVERHEAD_BYTES: Final = 40
"""What a message occupies in a request at most, in addition to its key and value."""

_MESSAGE_BYTES_MIN: Final = 95
"""Smaller messages count as this large, because `batch.num.messages` limits their number to 10,000."""

_CALL_MESSAGES: Final = 1_000
"""Maximum number of messages passed to the producer in one call, which holds the GIL. That many fit the CPU cache."""

_OnDelivery = Callable[[KafkaError | None, Message], None]

_log = logging.getLogger(__name__)


class UnitProducer:
    """The transactional producer of one unit. All methods raise KafkaException if a call to Kafka fails."""

    def __init__(self, settings: JoinerSettings, unit: int, group_metadata_consumer: Consumer, clock: Clock) -> None:
        """``group_metadata_consumer``: supplies the group metadata for the offsets; it must not be a group member."""
        self._unit, self._clock = unit, clock
        # Constant, because the consumer is not a group member. Fetching it holds the GIL until librdkafka answers.
        self._group_metadata = group_metadata_consumer.consumer_group_metadata()
        # Every call reuses these dicts, because creating them would cost as much as encoding the messages.
        self._slots: list[dict[str, Any]] = [{"key": None, "value": None} for _ in range(_CALL_MESSAGES)]
        self._unsent: dict[str, int] = {}
        """The size of each topic's messages that have been added since the last flush."""
        self.firsts: dict[str, int] = {}
        """The offset of the last transaction's first record in each topic; -1 until that record is delivered."""
        self.was_asked_again = False
        """Whether the last commit was retried."""
        self._client = make_producer(
            settings.kafka,
            transactional_id=f"{settings.application.name}-{unit}",
            transaction_timeout_ms=settings.application.transaction_timeout // 1_000_000,
            queue_buffering_backpressure_threshold=1,
            **TRANSACTIONAL,
        )
        self._writer = _native_writer(self._client) if settings.application.native else None

    def connect(self, topic: str) -> None:
        """Connect to Kafka without fencing the current owner. Call this before `init`."""
        connect(self._client, topic)

    def init(self) -> None:
        """Initialise the transactional id, which fences all other owners of the unit."""
        init_transactions(self._client, self._clock)

    def begin(self) -> None:
        """Begin a transaction."""
        self.firsts, self._unsent = {}, {}
        (self._writer or self._client).begin_transaction()

    def send_offsets(self, offsets: Mapping[str, int]) -> None:
        """Add the consumer group's new offsets, by input topic, to the transaction."""
        places = [TopicPartition(topic, self._unit, at) for topic, at in offsets.items()]
        call = self._client.send_offsets_to_transaction
        within(_OFFSETS_S + _RETURN_S, call, places, self._group_metadata, _OFFSETS_S)

    def write_all(self, messages: Outgoing) -> None:
        """Add messages to the transaction, in order."""
        if messages.keys() & self._unsent.keys():
            self.flush()
        # Kafka receives one part of each topic at a time, all of them in parallel.
        for number, parts in enumerate(zip_longest(*map(_parts, messages.values()))):
            if number:
                self.flush()
            for topic, part in zip(messages, parts, strict=True):
                if part is not None:
                    with self._explaining():
                        self._write_part(topic, part.batch)
                    self._unsent[topic] = part.size

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """If the client refuses a message because the transaction has failed, raise the error that says why."""
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:  # noqa: SLF001 - the public name
                # Only calls that begin or end a transaction raise it, and this one cannot succeed.
                self.begin()
            raise

    def _write_part(self, topic: str, batch: Batch) -> None:
        if self._writer is not None:
            self._write_columns(self._writer, topic, batch)
            return
        values = batch.values.each()
        keys = [None] * len(batch) if batch.keys is None else batch.keys.each()
        for begin in range(0, len(keys), _CALL_MESSAGES):
            end = begin + _CALL_MESSAGES
            self._write_some(topic, keys[begin:end], values[begin:end])

    def _write_columns(self, writer: NativeWriter, topic: str, batch: Batch) -> None:
        begin = 0
        if topic not in self.firsts and len(batch):
            # Write the first message with a delivery report, to learn its offset.
            self._write_one(topic, None if batch.keys is None else batch.keys[0], batch.values[0])
            begin = 1
        rest = batch.take(np.arange(begin, len(batch)))
        writer.write(topic, self._unit, rest.keys, rest.values)
        poll(self._client, 0)

    def _write_some(self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        waiting = self._slots[: len(keys)]
        for slot, key, value in zip(waiting, keys, values, strict=True):
            slot["key"], slot["value"] = key, value
        head, on_delivery = self._slots[0], self._first(topic)
        if on_delivery is not None:
            head["callback"] = on_delivery
        # The producer copies the messages that it accepts, so the slots can be reused.
        while self._client.produce_batch(topic, waiting, partition=self._unit) < len(waiting):
            # If the queue is full, `produce_batch` does not raise: it marks the refused messages, which we then resend.
            waiting = [slot for slot in waiting if "_error" in slot]
            for slot in waiting:
                fault: Any = slot.pop("_error")
                if fault.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes look like this
                    raise KafkaException(fault)
            poll(self._client, 0.05)
        head.pop("callback", None)
        poll(self._client, 0)

    def write(self, topic: str, key: str, value: bytes | None) -> None:
        """Add a record to the transaction."""
        size = max(len(key.encode()) + len(value or b"") + _OVERHEAD_BYTES, _MESSAGE_BYTES_MIN)
        if topic in self._unsent and self._unsent[topic] + size > _REQUEST_BYTES:
            self.flush()
        with self._explaining():
            self._write_one(topic, key.encode(), value)
        self._unsent[topic] = self._unsent.get(topic, 0) + size

    def _write_one(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        on_delivery = self._first(topic)
        while True:
            try:
                self._client.produce(topic, value, key, self._unit, on_delivery=on_delivery)
            except BufferError:
                poll(self._client, 0.05)
            else:
                return

    def flush(self) -> None:
        """Wait until Kafka has acknowledged all records sent in the transaction."""
        if flush(self._client, _COMMIT_S):
            raise timed_out(f"Kafka did not acknowledge all records of unit {self._unit} within {_COMMIT_S:.0f} s")
        self._unsent = {}

    def abort(self) -> None:
        """Abort the transaction."""
        self._client.abort_transaction(_COMMIT_S)

    def commit(self) -> None:
        """Commit the transaction. After a retriable error, such as a lost response, retry it, which is safe."""
        self.was_asked_again = False
        commit(self._client, self._clock, self._clock.monotonic_s() + _COMMIT_S, self._note_retry)

    def _note_retry(self, error: KafkaError) -> None:
        _log.info("unit %s: retrying the commit: %s", self._unit, error.str())
        self.was_asked_again = True

    def _first(self, topic: str) -> _OnDelivery | None:
        """Return a delivery callback if the next record in ``topic`` is the transaction's first there, else None."""
        if topic in self.firsts:
            return None
        self.firsts[topic] = -1
        return _noting_in(self.firsts)


class _Part(NamedTuple):
    """Messages of one topic that fit into one request, and the most that they occupy in it, in bytes."""

    batch: Batch
    size: int


def _parts(batch: Batch) -> Iterator[_Part]:
    keys = 0 if batch.keys is None else batch.keys.lengths()
    ends = np.maximum(batch.values.lengths() + keys + _OVERHEAD_BYTES, _MESSAGE_BYTES_MIN).cumsum()
    begin = size = 0
    while begin < len(batch):
        # A message that is too large by itself is a part of its own.
        end = max(begin + 1, int(ends.searchsorted(size + _REQUEST_BYTES, side="right")))
        yield _Part(batch.take(np.arange(begin, end)), int(ends[end - 1]) - size)
        begin, size = end, int(ends[end - 1])


def _native_writer(client: Producer) -> NativeWriter | None:
    try:
        return NativeWriter(client)
    except Unavailable:
        # This process's consumer has already logged why.
        return None


def _noting_in(firsts: dict[str, int]) -> _OnDelivery:
    """Create a delivery callback that stores the offset of a record in ``firsts``.

    The callback must not refer to anything else. The client holds on to it while the record is in flight, so a callback
    that referred to the client would keep the client alive forever.
    """

    def note(_error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        firsts[str(message.topic())] = -1 if offset is None else int(offset)

    return note
