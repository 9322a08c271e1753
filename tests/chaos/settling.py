"""Waits until a pipeline is idle: every event is in Kafka and joined, and the results are in the database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import data_topic_specs, ensure_topics, state_topic_spec
from broker.settings import load_settings
from broker.wire.records import Record, decode_data
from connector.settings import Settings as ConnectorSettings
from db_connector.settings import DbConnectorSettings
from joiner.check.verify.events import parse_row
from joiner.cli.merging.merger import merge_topics
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import log_range
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.chaos.pipeline import PARTITIONS, ChaosPipeline
from tests.integration.merging import is_merged
from tests.integration.services import read_topic, topic_reader, wait_until

DEADLINE_S: Final = 180.0
"""The deadline of each step. On two busy cores, a Kafka client may be stuck for half a minute (see `broker.kafka`)."""


class Settling:
    """Waits for a pipeline to process all of its input."""

    def __init__(self, pipeline: ChaosPipeline) -> None:
        self._pipeline = pipeline
        self._settings = [load_settings(JoinerSettings, config) for config in pipeline.configs.values()]
        """Of each application, in the order of the pipeline."""
        self._replicas = [
            replica_settings(settings, number)
            for settings in self._settings
            for number in range(settings.application.replicas)
        ]
        self._replicated = [settings for settings in self._settings if settings.application.replicas > 1]
        self._kafka = self._settings[0].kafka
        self._consumer: Consumer | None = None

    def create_topics(self) -> None:
        """Create the topics, before any service does."""
        for settings in self._settings:
            specs = [*data_topic_specs(settings.topics), state_topic_spec(settings.application.name, settings.topics)]
            specs += merge_topics(settings) if settings.application.replicas > 1 else []
            by_name = {spec.name: spec for spec in specs}
            ensure_topics(AdminClient(settings.kafka.client_config()), [*by_name.values()])

    def wait(self, look: Callable[[], bool]) -> None:
        """Wait until everything is processed. ``look`` is polled, and returns whether the simulator is done."""
        wait_until(look, "the simulator has sent everything", DEADLINE_S)
        expected = self._expected()
        for is_through, what in (
            (lambda: not self._missing(expected), "all events are in Kafka"),
            (self._is_joined, "all input is joined"),
            (self._is_merged, "all results are merged"),
            (self._is_written, "all results are in the database"),
        ):
            try:
                wait_until(lambda is_through=is_through: look() and is_through(), what, DEADLINE_S)  # type: ignore[misc]
            except AssertionError as error:
                missing = f"{len(expected)} quantities are not in Kafka: {sorted(expected)[:5]}" if expected else ""
                raise AssertionError(f"{error}; {missing}") from error

    def wait_until_joined(self) -> None:
        """Wait until everything that is in Kafka is joined."""
        wait_until(self._is_joined, "all input is joined", DEADLINE_S)

    def wait_until_written(self) -> None:
        """Wait until everything that is in Kafka is joined, and all results are in the database."""
        self.wait_until_joined()
        wait_until(self._is_written, "all results are in the database", DEADLINE_S)

    def close(self) -> None:
        """Close the client."""
        if self._consumer is not None:
            self._consumer.close()

    def _expected(self) -> set[tuple[str, str, str]]:
        events = load_settings(ConnectorSettings, self._pipeline.config).events
        found = set()
        with self._pipeline.events.open("rb") as file:
            for line in file:
                row = parse_row(line.removesuffix(b"\n"), events.time_unit, events.event_bytes_max)
                found |= {(one.thing, one.quantity, one.id) for one in row.quantities}
        return found

    def _missing(self, expected: set[tuple[str, str, str]]) -> int:
        """Remove the quantities found in Kafka from ``expected``, and return how many are still missing."""
        topic = self._settings[0].topics.data
        for stored in read_topic(self._kafka.bootstrap_servers, topic, PARTITIONS):
            record, _ = decode_data(stored.value, "ms")
            if isinstance(record, Record):
                expected.discard((record.thing, record.quantity, record.id))
        return len(expected)

    def _is_joined(self) -> bool:
        # In this order, so that the input of each application is complete when it is its turn.
        return all(map(self._is_joined_by, self._replicas))

    def _is_joined_by(self, settings: JoinerSettings) -> bool:
        try:
            with closing(Readers(settings, SystemClock())) as readers:
                found = {unit: read_checkpoint(readers, unit) for unit in range(PARTITIONS)}
            for unit, checkpoint in found.items():
                if checkpoint is None or any(at < self._end(topic, unit) for topic, at in checkpoint.offsets.items()):
                    return False
        except KafkaException:
            return False
        return True

    def _is_merged(self) -> bool:
        try:
            return all(map(is_merged, self._replicated))
        except KafkaException:
            return False

    def _is_written(self) -> bool:
        settings = load_settings(DbConnectorSettings, self._pipeline.last_config)
        topic = settings.results_topic
        with closing(topic_reader(self._kafka.bootstrap_servers, settings.db_connector.group)) as group:
            try:
                committed = group.committed([TopicPartition(topic, unit) for unit in range(PARTITIONS)], 10)
                return all(max(at.offset, 0) >= self._end(topic, at.partition) for at in committed)
            except KafkaException:
                return False

    def _end(self, topic: str, partition: int) -> int:
        if self._consumer is None:
            self._consumer = topic_reader(self._kafka.bootstrap_servers, f"{self._pipeline.name}-watch")
        return log_range(self._consumer, topic, partition)[1]
