"""The control topic ``<application>.control``: what a move's order, source and target tell each other.

It accelerates and explains; it decides nothing. Whose a unit is stands in its progress record alone, so a message that
is lost, read twice or never costs time at most. Therefore a reader begins at the end of the log: whoever has to know
something is told it again (see `moving`). One partition, so that all readers see one order.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Final

import msgspec
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Producer, TopicPartition

from joiner.run.clients import TIMEOUT_S, log_range, make_consumer, make_producer, told
from joiner.run.settings import JoinerSettings

FORMAT_VERSION: Final = 1
"""Of the records here; a reader passes over higher ones, and over kinds that it does not know."""

_FLUSH_S: Final = 1.0
"""For one record. Where Kafka needs longer, the client goes on trying behind our back."""

_RETRY_S: Final = 0.1

_log = logging.getLogger(__name__)


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """What all of them carry: the ``move`` they belong to."""

    format: int = FORMAT_VERSION
    move: str


class Request(_Record, frozen=True, kw_only=True):
    """The order: ``units`` are to go to the placement ``to``. Repeated for as long as it is wanted."""

    units: list[int]
    to: str


class Cancelled(_Record, frozen=True, kw_only=True):
    """The order is withdrawn for what has not been released."""

    units: list[int]


class _OfUnit(_Record, frozen=True, kw_only=True):
    """Of one unit; ``instance``: who writes it."""

    unit: int
    to: str
    instance: str


class Ready(_OfUnit, frozen=True, kw_only=True):
    """The target has built the unit's state, and waits for it."""


class Released(_OfUnit, frozen=True, kw_only=True):
    """The source has written its last transaction: the unit is nobody's, on its way to ``to``."""


class Taken(_OfUnit, frozen=True, kw_only=True):
    """The target has claimed the unit and goes on; ``late_ms``: so long before this was written."""

    late_ms: int = 0


class Refused(_OfUnit, frozen=True, kw_only=True):
    """Source or target cannot do it; ``why`` says what to do."""

    why: str


class Back(_OfUnit, frozen=True, kw_only=True):
    """Nobody claimed the unit, so it has been taken back by ``instance``."""


class Claiming(_Record, frozen=True, kw_only=True):
    """The run ``run`` of placement ``to`` is in the middle of claiming these units. Repeated for as long as it is.

    ``move`` is empty: whoever waits for one of the units waits on, whatever for.
    """

    move: str = ""
    units: list[int]
    to: str
    run: str


Record = Request | Cancelled | Ready | Released | Taken | Refused | Back | Claiming

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class _Format(msgspec.Struct):
    format: int


def encode(record: msgspec.Struct) -> bytes:
    """The JSON bytes of a record."""
    return _encoder.encode(record)


def decode(value: bytes | None) -> Record | None:
    """A record; None where it is none that this release knows."""
    try:
        if msgspec.json.decode(value or b"", type=_Format).format > FORMAT_VERSION:
            return None
        record: Record = _decoder.decode(value or b"")
        return record
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class ControlLog:
    """Reads the control topic from its end on, and writes to it. Reading is for one thread, writing for any."""

    def __init__(self, settings: JoinerSettings) -> None:
        """Begin at the end of the log as it is when Kafka answers, which is not waited for."""
        self._settings = settings
        self._topic = settings.control_topic
        self._consumer = make_consumer(settings.kafka, settings.application.name, fetch_queue_backoff_ms=2)
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._begin_at(OFFSET_END)

    def begin_now(self) -> None:
        """Wait until it is known where the end is: nothing that is written from now on is missed.

        Raises KafkaException.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._begin_at(log_range(self._consumer, self._topic, 0)[1])
            except KafkaException:  # one that was just made has no leader for a moment
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def read(self, wait_s: float = 0.0) -> list[tuple[Record, int]]:
        """What has come since, each with its append time in ms of the epoch."""
        found = []
        for message in self._consumer.consume(100, wait_s):
            error = message.error()
            if error is not None:
                # The log was cut, or made anew, or Kafka is away; what counts is said again.
                if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the public name
                    self._begin_at(OFFSET_END)
                _log.debug("%s: %s", self._topic, error.str())
                continue
            record = decode(message.value())
            if record is not None:
                found.append((record, int(message.timestamp()[1])))
        return found

    def write(self, record: msgspec.Struct) -> None:
        """Append a record. It may come late or, where Kafka is away for long, never: nothing rests on it."""
        with self._lock:
            producer = self._producer = self._producer or make_producer(self._settings.kafka, linger_ms=0)
        try:
            self._append(producer, record)
        except (KafkaException, BufferError) as error:
            _log.warning("%s could not be written to %s: %s", type(record).__name__, self._topic, told(error))

    def post(self, record: msgspec.Struct) -> None:
        """Append a record that nobody misses if it does not come; returns at once."""
        with self._lock:
            producer = self._producer = self._producer or make_producer(self._settings.kafka, linger_ms=0)
        with suppress(KafkaException, BufferError):
            producer.produce(self._topic, encode(record), partition=0)
            producer.poll(0)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _append(self, producer: Producer, record: msgspec.Struct) -> None:
        producer.produce(self._topic, encode(record), partition=0)
        if producer.flush(_FLUSH_S):
            _log.warning("%s is not yet written to %s", type(record).__name__, self._topic)

    def _begin_at(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])
