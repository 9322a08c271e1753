"""Reads and writes the control topic's records about the members of a site.

Unlike `ControlLog`, it also reads the last records written before it was opened.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from broker.kafka.appender import Appender
from joiner.runtime.clock import Clock
from joiner.runtime.control import TAIL, Heartbeat, Logged, MemberRecord, decode_member, encode
from joiner.runtime.kafka.clients import describe, known_range, make_consumer, make_producer
from joiner.runtime.settings import JoinerSettings

OFFSET_TAIL_BASE: Final = -2000
"""librdkafka's logical offset for the end of a log. Subtract a number of records to start that far before the end."""

_LIFE_MS: Final = 1_000
"""Records that Kafka has not acknowledged within this time are dropped, because later ones replace them. A record may
wait as long before that to be given to the client."""

_RECONNECT: Final = {"reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 200}
"""After a Kafka outage, all instances should be heard from again at about the same time."""

_READ_MAX: Final = 1_000

_log = logging.getLogger(__name__)


class MemberLog:
    """The records about members in an application's control topic. Not thread-safe."""

    def __init__(self, settings: JoinerSettings) -> None:
        """Start reading `TAIL` records before the log's end as of Kafka's first answer."""
        self._topic = settings.control_topic
        self._consumer = make_consumer(
            settings.kafka,
            settings.application.name,
            fetch_queue_backoff_ms=2,
            fetch_wait_max_ms=500,
            **_RECONNECT,
        )
        make = partial(make_producer, settings.kafka, linger_ms=0, message_timeout_ms=_LIFE_MS, **_RECONNECT)
        self._appender = Appender(make, self._topic, 0, _LIFE_MS / 1000)
        self._appender.connect()
        self._read_from(OFFSET_TAIL_BASE - TAIL)
        # librdkafka subtracts from the end of a log without regard to its first offset.
        self._if_removed = OFFSET_BEGINNING

    def begin_now(self, clock: Clock) -> None:
        """Wait until the end of the log is known, and read only what is written after it.

        Raises KafkaException if the end is not known within `TIMEOUT_S`.
        """
        self._if_removed = OFFSET_END
        self._read_from(known_range(self._consumer, clock, self._topic, 0)[1])

    def read(self) -> list[Logged]:
        """Return the records that have arrived, in order. Does not wait."""
        with suppress(KafkaException, BufferError):
            self._appender.poll()
        found = []
        for message in self._consumer.consume(_READ_MAX, 0.0):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the public name of the constant
                    self._read_from(self._if_removed)
                _log.debug("%s: %s", self._topic, error.str())
                continue
            # If the log is truncated or recreated later, old records must not be taken for new ones.
            self._if_removed = OFFSET_END
            record = decode_member(message.value())
            if record is not None:
                found.append(Logged(record, message.offset() or 0, int(message.timestamp()[1])))
        return found

    def write(self, record: MemberRecord) -> None:
        """Append a record without waiting for it to be written. It may be lost."""
        try:
            # Only the newest heartbeat matters.
            self._appender.append(encode(record), "heartbeat" if isinstance(record, Heartbeat) else "")
        except (KafkaException, BufferError) as error:
            _log.debug("%s could not be written to %s: %s", type(record).__name__, self._topic, describe(error))

    def _read_from(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])

    def close(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds for the last records to be written, and stop reading."""
        with suppress(KafkaException, BufferError):
            self._appender.flush(wait_s)
        self._consumer.close()
