"""Which units this process is to serve: told by the consumer group, which spreads them over its processes.

The member subscribes to one input topic only to be told its partitions; it is paused and never reads. It does
not fence anything: ownership is the transactional id's business. Membership is static, so that a process that
comes back within the session timeout gets its units again at once.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from joiner.run.clients import make_consumer
from joiner.run.settings import JoinerSettings


class InstanceTaken(Exception):
    """Another process of the application runs under the same instance name."""


class Membership:
    """The group membership of this process; `units` are those it is to serve now."""

    def __init__(self, settings: JoinerSettings, give_back: Callable[[list[int], bool], None]) -> None:
        """``give_back(units, lost)`` is called before units go elsewhere; lost: they have gone already."""
        self.units: set[int] = set()
        self._fatal: KafkaError | None = None
        self._give_back = give_back
        self._consumer = make_consumer(
            settings.kafka,
            settings.application.name,
            # The only way in which the library tells that the instance name was taken.
            self._on_error,
            group_instance_id=settings.application.instance,
            session_timeout_ms=settings.application.session_timeout // 1_000_000,
            partition_assignment_strategy="cooperative-sticky",
        )
        self._instance = settings.application.instance
        self._consumer.subscribe(
            settings.input_topics[:1],
            on_assign=self._on_assign,
            on_revoke=lambda consumer, partitions: self._on_revoke(consumer, partitions, lost=False),
            on_lost=lambda consumer, partitions: self._on_revoke(consumer, partitions, lost=True),
        )

    def poll(self) -> None:
        """Keep the membership alive and learn of changes. Raises `InstanceTaken`."""
        self._consumer.poll(0)
        if self._fatal is not None:
            self._raise(self._fatal)

    def close(self) -> None:
        """Stop being a member."""
        self._consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = OFFSET_END  # where it would read if it were not paused
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        self.units |= {partition.partition for partition in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition], *, lost: bool) -> None:
        units = sorted(partition.partition for partition in partitions)
        self.units -= set(units)
        self._give_back(units, lost)
        consumer.incremental_unassign(partitions)

    def _raise(self, error: KafkaError) -> None:
        if error.code() == KafkaError.FENCED_INSTANCE_ID or "instance" in error.str():
            raise InstanceTaken(
                f"another process runs as instance {self._instance!r}: give each process of the application a name of "
                "its own with --instance or application.instance"
            )
        raise KafkaException(error)
