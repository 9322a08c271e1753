"""Lets one of several processes merge, while the others wait.

The processes are members of a consumer group that assigns them the application's control topic, which has a single
partition. They do not read it. The assignment avoids that two processes fence each other in turn, but is no lock: that
is the transactional id of `output`.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.errors import is_fatal
from broker.kafka.group_member import give_partitions_back, member_config
from broker.kafka.replicas import merging_group
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_consumer
from joiner.runtime.settings import JoinerSettings

_POLL_S: Final = 0.05

_HEARTBEAT_MS: Final = 100
"""A process learns with its next heartbeat that the one that merges has left. By default, these are 3 s apart."""

_TIMER_MS: Final = 100
"""librdkafka sends heartbeats only when its main thread wakes up. Without a timer, that may take half a second, and the
only timer that a setting can start is the one that collects statistics. Nobody reads them."""


class Leadership:
    """The membership of a process. ``is_mine``: whether this process should merge."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._clock = clock
        self.is_mine = False
        application = settings.application
        self._group, self._topic = merging_group(application.name), settings.control_topic
        self._consumer = make_consumer(
            settings.kafka,
            self._group,
            client_id=application.instance,
            **member_config(application.session_timeout, None)
            | {"heartbeat_interval_ms": _HEARTBEAT_MS, "statistics_interval_ms": _TIMER_MS},
        )
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def check(self) -> bool:
        """Return whether this process should merge, after waiting a moment if it should not. Call it often.

        Raises KafkaException if the client has failed for good, or if Kafka refuses to let it wait.
        """
        message = self._consumer.poll(0.0 if self.is_mine else _POLL_S)
        error = None if message is None else message.error()
        if error is not None and is_fatal(error):
            raise KafkaException(error)
        if error is not None and error.code() > 0:
            # This is an answer of Kafka, such as a denied access or a topic that was deleted. The client tells it once,
            # and is then never assigned anything.
            raise KafkaException(KafkaError(error.code(), f"group {self._group}, topic {self._topic}: {error.str()}"))
        return self.is_mine

    def close(self) -> None:
        """Leave the group, so that another process can merge at once."""
        give_partitions_back(self._consumer, self._clock.monotonic_s)
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = [TopicPartition(place.topic, place.partition, OFFSET_END) for place in partitions]
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)
            self.is_mine = True

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        if partitions:
            self.is_mine = False
