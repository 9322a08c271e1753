"""Tracks, from Kafka alone, how much data has reached each step of the pipeline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from broker.settings import EventSettings
from demo.services import Services
from demo.task import Pipeline
from joiner.check.verify.events import parse_row
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import log_range, make_consumer
from joiner.runtime.kafka.readers import Readers

STALL_S: Final = 60.0
"""The demo fails if there is no progress for this long."""

_LOOK_S: Final = 0.25

_log = logging.getLogger(__name__)


class Stalled(Exception):
    """Raised if a step stops making progress for more than `STALL_S` before all data has passed through it.

    The message names the step and says how far it got.
    """


def parts_in(events: Path, settings: EventSettings) -> tuple[int, int]:
    """Return the number of lines in an events file, and the number of records and dead letters they become in total.

    Every line is sent, even a blank one, and becomes at least one record or dead letter.
    """
    lines = parts = 0
    with events.open("rb") as file:
        for line in file:
            row = parse_row(line.removesuffix(b"\n"), settings.time_unit, settings.event_bytes_max)
            lines += 1
            parts += len(row.quantities) + len(row.refused)
    return lines, parts


class Flow:
    """Waits until all data has passed through every step of a pipeline.

    The methods that wait raise `Stalled` and `ServiceFailed`.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._settings = settings = pipeline.joiner
        self._units = range(settings.topics.partitions)
        self._consumer: Consumer = make_consumer(settings.kafka, "demo")
        self._database: Consumer = make_consumer(settings.kafka, pipeline.db_connector.db_connector.group)

    def close(self) -> None:
        """Close the clients."""
        self._consumer.close()
        self._database.close()

    def wait_in_kafka(self, parts: int, services: Services) -> None:
        """Wait until the data topic and the dead-letter topic contain at least ``parts`` records in total."""

        def look() -> tuple[int, int]:
            return self._length(self._settings.topics.data) + self._length(self._settings.topics.rejected), parts

        self._wait("into Kafka", look, services)

    def wait_joined(self, services: Services) -> None:
        """Wait until every unit's checkpoint has reached the end of the data topic."""

        def look() -> tuple[int, int]:
            topic = self._settings.topics.data
            ends = [log_range(self._consumer, topic, unit)[1] for unit in self._units]
            return sum(self._joined(topic, unit) for unit in self._units), sum(ends)

        self._wait("joined", look, services)

    def wait_in_database(self, services: Services) -> None:
        """Wait until the database connector has committed its offsets up to the end of the result topic."""

        def look() -> tuple[int, int]:
            topic = self._settings.topics.out
            ends = [log_range(self._consumer, topic, unit)[1] for unit in self._units]
            committed = self._database.committed([TopicPartition(topic, unit) for unit in self._units], 10)
            return sum(max(at.offset, 0) for at in committed), sum(ends)

        self._wait("into the database", look, services)

    def _length(self, topic: str) -> int:
        return sum(log_range(self._consumer, topic, unit)[1] for unit in self._units)

    def _joined(self, topic: str, unit: int) -> int:
        settings = self._settings
        with closing(Readers(settings, SystemClock())) as readers:
            checkpoint = read_checkpoint(readers, unit)
        return checkpoint.offsets[topic] if checkpoint is not None else 0

    def _wait(self, what: str, look: Callable[[], tuple[int, int]], services: Services) -> None:
        done, moved_s, so_far = -1, time.monotonic(), "nothing yet"
        for now_s in _looks():
            services.check()
            fault = ""
            try:
                before, (done, wanted) = done, look()
            except KafkaException as error:
                fault = f" (Kafka: {error.args[0].str()})"
                _log.info("%s: waiting%s", what, fault)
            else:
                if done >= wanted:
                    return
                so_far = f"{done} of {wanted}"
                if done != before:
                    moved_s = now_s
            if now_s - moved_s > STALL_S:
                raise Stalled(f"{what}: {so_far}, and no progress for {STALL_S:.0f} s{fault}")


def _looks() -> Iterator[float]:
    while True:
        yield time.monotonic()
        time.sleep(_LOOK_S)
