"""Begins transactions and writes columns of messages with a producer, by calling librdkafka directly.

**Memory.** librdkafka copies the bytes of every message before `write` returns, so the columns may then be freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.errors import unwrap_fatal_errors
from broker.kafka.native.library import F_COPY, current_handle, handle_of, library, load_loops

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from numpy.typing import NDArray

    from broker.wire.columns import StringColumn

    Ints = NDArray[np.int64]

_CALL_MESSAGES: Final = 10_000
"""The maximum number of messages passed to librdkafka in one call. A single array of this size is reused."""

_FULL_WAIT_S: Final = 0.02


class NativeWriter:
    """Writes messages with one producer, without delivery reports: if a message is lost, the transaction fails."""

    def __init__(self, producer: Producer) -> None:
        """Prepare to write with ``producer``. Raises `Unavailable`."""
        self._memory, self._library = load_loops(), library()
        self._producer = producer
        self._handle = handle_of(producer)
        self._messages = np.zeros((_CALL_MESSAGES, self._memory.WORDS), dtype=np.int64)

    def begin_transaction(self) -> None:
        """Begin a transaction, like `Producer.begin_transaction`. Raises KafkaException.

        The producer's own method holds the GIL while it waits for librdkafka's thread.
        """
        self._check_open()
        error = self._library.rd_kafka_begin_transaction(self._handle)
        if error:
            raise KafkaException(self._convert_error(error))

    def write(self, topic: str, partition: int, keys: StringColumn | None, values: StringColumn) -> None:
        """Add messages to the producer's queue, in order. Wait while the queue is full. Raises KafkaException."""
        if not len(values):
            return
        self._check_open()
        handle = self._library.rd_kafka_topic_new(self._handle, topic.encode(), None)
        if not handle:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC, topic))  # noqa: SLF001 - the public name
        try:
            for begin in range(0, len(values), _CALL_MESSAGES):
                rows = slice(begin, begin + _CALL_MESSAGES)
                messages = self._messages[: len(values.start[rows])]
                messages[:] = 0
                self._refer(messages, values, rows, self._memory.PAYLOAD)
                if keys is not None:
                    self._refer(messages, keys, rows, self._memory.KEY)
                self._produce(handle, partition, messages)
        finally:
            # Do not cache the topic handle: the producer cannot be destroyed while a handle exists.
            self._library.rd_kafka_topic_destroy(handle)

    def _check_open(self) -> None:
        if current_handle(self._producer) != self._handle:
            raise KafkaException(KafkaError(KafkaError._DESTROY, "the producer is closed"))  # noqa: SLF001 - public name

    def _convert_error(self, error: int) -> KafkaError:
        """Convert the ``rd_kafka_error_t`` at this address, and free it."""
        loaded = self._library
        try:
            return KafkaError(
                loaded.rd_kafka_error_code(error),
                loaded.rd_kafka_error_string(error).decode(errors="replace"),
                fatal=bool(loaded.rd_kafka_error_is_fatal(error)),
                retriable=bool(loaded.rd_kafka_error_is_retriable(error)),
                txn_requires_abort=bool(loaded.rd_kafka_error_txn_requires_abort(error)),
            )
        finally:
            loaded.rd_kafka_error_destroy(error)

    @staticmethod
    def _refer(messages: Ints, column: StringColumn, rows: slice, member: int) -> None:
        """Store each string's address and length in the key or value field of the message in the same row."""
        messages[:, member] = column.start[rows] + column.data.ctypes.data
        messages[:, member + 1] = column.end[rows] - column.start[rows]

    def _produce(self, topic: int, partition: int, messages: Ints) -> None:
        while len(messages):
            count = self._library.rd_kafka_produce_batch(topic, partition, F_COPY, messages.ctypes.data, len(messages))
            if count == len(messages):
                return
            errors = messages[:, self._memory.ERROR].astype(np.int32)
            for code in np.unique(errors[errors != 0]).tolist():
                if code != KafkaError._QUEUE_FULL:  # noqa: SLF001 - the public name
                    raise KafkaException(KafkaError(code))
            messages = messages[errors != 0]
            messages[:, self._memory.ERROR] = 0
            with unwrap_fatal_errors():
                self._producer.poll(_FULL_WAIT_S)
