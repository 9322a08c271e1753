"""Appends records to a partition, without keeping a core busy while Kafka is slow.

librdkafka 2.16 sends at most five messages of a partition at a time if the producer is idempotent. While more are due,
its thread polls without pausing until Kafka answers. If many processes did so, Kafka, on the same machine, might never
get the CPU time to answer. Therefore the producer is given no more than five records at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Producer

IN_FLIGHT_MAX: Final = 5
"""The number of unacknowledged records that the producer may have (librdkafka's ``RD_KAFKA_IDEMP_MAX_INFLIGHT``)."""

_WAIT_S: Final = 0.05


class Appender:
    """Appends records to one partition, in order. They may be lost. Thread-safe."""

    def __init__(
        self, make_producer: Callable[[], Producer], topic: str, partition: int = 0, *, waiting_max: int
    ) -> None:
        """``waiting_max``: how many more records may wait to be given to the producer. If full, the oldest is lost."""
        self._make_producer, self._topic, self._partition = make_producer, topic, partition
        self._producer: Producer | None = None
        self._waiting: deque[bytes] = deque(maxlen=waiting_max)
        self._lock = threading.Lock()

    def connect(self) -> None:
        """Create the producer now, so that it is connected when the first record is appended. Raises KafkaException."""
        with self._lock:
            self._connected()

    def append(self, value: bytes) -> None:
        """Append a record without waiting for it to be written.

        Raises KafkaException or BufferError if the producer refuses it. If the error is fatal, the next call creates a
        new producer.
        """
        with self._lock:
            self._waiting.append(value)
            self._give(self._connected())

    def poll(self) -> None:
        """Give waiting records to the producer, if it may have more of them. Raises as `append` does."""
        with self._lock:
            if self._producer is not None:
                self._give(self._producer)

    def flush(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until Kafka has all records. Return whether it does. Raises as `append` does."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                producer = self._producer
                if producer is None:
                    return True
                self._give(producer)
                if not self._waiting and not len(producer):
                    return True
            wait_s = min(_WAIT_S, deadline_s - time.monotonic())
            if wait_s <= 0:
                return False
            producer.flush(wait_s)

    def _connected(self) -> Producer:
        if self._producer is None:
            self._producer = self._make_producer()
        return self._producer

    def _give(self, producer: Producer) -> None:
        try:
            # Counts acknowledged records out.
            producer.poll(0)
            while self._waiting and len(producer) < IN_FLIGHT_MAX:
                producer.produce(self._topic, self._waiting.popleft(), partition=self._partition)
        except KafkaException as error:
            if error.args[0].fatal():
                self._producer = None
            raise
