"""Appends records to a partition, without keeping a core busy while Kafka is slow.

librdkafka 2.16 sends at most five messages of a partition at a time if the producer is idempotent. While more are due,
its thread polls without pausing until Kafka answers. If many processes did so, Kafka, on the same machine, might never
get the CPU time to answer. Therefore the producer is given no more than five records at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException

from broker.kafka.errors import is_fatal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Producer

IN_FLIGHT_MAX: Final = 5
"""The number of unacknowledged records that the producer may have (librdkafka's ``RD_KAFKA_IDEMP_MAX_INFLIGHT``)."""

WAITING_MAX: Final = 1_000
"""How many more records may wait to be given to the producer. If there are more, the oldest are lost."""


class _Waiting(NamedTuple):
    value: bytes
    kind: str
    until_s: float


class Appender:
    """Appends records to one partition, in order. They may be lost. Thread-safe."""

    def __init__(self, make_producer: Callable[[], Producer], topic: str, partition: int, lasts_s: float) -> None:
        """``lasts_s``: how long a record may wait to be given to the producer; then it is dropped."""
        self._make_producer, self._topic, self._partition = make_producer, topic, partition
        self._lasts_s = lasts_s
        self._producer: Producer | None = None
        self._waiting: deque[_Waiting] = deque(maxlen=WAITING_MAX)
        # Not held during calls of the producer.
        self._lock = threading.Lock()
        # Held by the thread that is giving a record to the producer, so that the order is kept.
        self._giving = threading.Lock()

    def connect(self) -> Producer:
        """Create the producer now, so that it is connected when the first record is appended. Raises KafkaException."""
        with self._lock:
            if self._producer is None:
                self._producer = self._make_producer()
            return self._producer

    def append(self, value: bytes, kind: str = "") -> None:
        """Append a record without waiting for it to be written.

        ``kind``: the record replaces one of the same kind that is still waiting, unless the kind is empty. Raises
        KafkaException or BufferError if the producer refuses a record, which is then lost. If the error is fatal, the
        next call creates a new producer.
        """
        producer = self._add(value, kind)
        with self._noticing_failure(producer):
            producer.poll(0)

    def write(self, value: bytes, timeout_s: float) -> bool:
        """Append a record, and wait as `flush` does. Raises as `append` does."""
        self._add(value, "")
        return self.flush(timeout_s)

    def poll(self) -> None:
        """Give waiting records to the producer, if it may have more of them. Raises as `append` does."""
        if self._producer is None and not self._waiting:
            return
        producer = self.connect()
        with self._noticing_failure(producer):
            producer.poll(0)
        self._give(producer)

    def flush(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until no record is left to be written. Return whether that is so.

        Kafka may have refused some of them. Raises as `append` does.
        """
        deadline_s = time.monotonic() + timeout_s
        while (producer := self._producer) is not None:
            with self._noticing_failure(producer):
                producer.flush(max(0.0, deadline_s - time.monotonic()))
            if len(producer):
                return False
            if not self._waiting:
                return True
            self._give(producer)
            if self._waiting and not len(producer):
                return False  # another thread is giving them
        return not self._waiting

    def _add(self, value: bytes, kind: str) -> Producer:
        with self._lock:
            if kind and any(one.kind == kind for one in self._waiting):
                self._waiting = deque((one for one in self._waiting if one.kind != kind), WAITING_MAX)
            self._waiting.append(_Waiting(value, kind, time.monotonic() + self._lasts_s))
        producer = self.connect()
        self._give(producer)
        return producer

    def _give(self, producer: Producer) -> None:
        refusal: Exception | None = None
        # If another thread is giving a record, it will look for ours afterwards.
        while self._waiting and self._giving.acquire(blocking=False):
            try:
                if not self._has_room(producer):
                    break
                self._give_next(producer)
            except (KafkaException, BufferError) as error:
                refusal = error
            finally:
                self._giving.release()
        if refusal is not None:
            raise refusal

    def _has_room(self, producer: Producer) -> bool:
        if producer is not self._producer:
            return False
        if len(producer) >= IN_FLIGHT_MAX:
            with self._noticing_failure(producer):
                producer.poll(0)  # counts out the acknowledged ones
        return len(producer) < IN_FLIGHT_MAX

    def _give_next(self, producer: Producer) -> None:
        with self._lock:
            one = self._waiting.popleft() if self._waiting else None
        if one is not None and time.monotonic() <= one.until_s:
            with self._noticing_failure(producer):
                producer.produce(self._topic, one.value, partition=self._partition)

    @contextmanager
    def _noticing_failure(self, producer: Producer) -> Iterator[None]:
        """Drop the producer if it has failed for good, so that the next call creates a new one."""
        try:
            yield
        except KafkaException as error:
            if is_fatal(error.args[0]):
                with self._lock:
                    if self._producer is producer:
                        self._producer = None
            raise
