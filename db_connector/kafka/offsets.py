"""Commits the consumer group's offsets asynchronously, once the database has acknowledged the results.

Each offset carries the name of the target database as metadata.

Failed offset commits are retried with the next commit. `reader` tracks which partitions this member owns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.client_log import answered, client_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from db_connector.progress import RateLimit

KAFKA_LOG: Final = client_logger("db_connector.librdkafka")

log = logging.getLogger(__name__)


class OffsetCommits:
    """Commits the acknowledged offsets in ``topic``, with ``target`` as their metadata.

    ``warnings`` limits how often failed commits are logged.
    """

    def __init__(self, topic: str, target: str, warnings: RateLimit) -> None:
        self._topic, self._target, self._warnings = topic, target, warnings
        self.acknowledged: dict[int, int] = {}
        """The offset after the last acknowledged record, per partition."""
        self._requested: dict[int, int] = {}
        self._pending_requests = 0

    @property
    def is_pending(self) -> bool:
        """Whether a commit is still waiting for Kafka's response."""
        return self._pending_requests > 0

    def commit(self, consumer: Consumer) -> None:
        """Commit every acknowledged offset that has not been committed yet, including those whose commit failed."""
        due = {p: offset for p, offset in self.acknowledged.items() if offset != self._requested.get(p)}
        if not due:
            return
        self._requested.update(due)
        self._pending_requests += 1
        try:
            consumer.commit(
                offsets=[TopicPartition(self._topic, p, offset, self._target) for p, offset in due.items()],
                asynchronous=True,
            )
        except KafkaException as error:
            self.on_commit(error.args[0], [TopicPartition(self._topic, p) for p in due])

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Record the outcome of a commit. This is the consumer's ``on_commit`` callback."""
        self._pending_requests -= 1
        if error is None:
            answered(KAFKA_LOG)
        for partition in partitions:
            if error is not None or partition.error is not None:
                self._requested.pop(partition.partition, None)
        if error is not None and self._warnings.allows():
            log.warning("the offsets could not be committed; retrying: %s", error.str())

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget these partitions, because this member no longer owns them."""
        for partition in partitions:
            self.acknowledged.pop(partition, None)
            self._requested.pop(partition, None)

    def reset(self) -> None:
        """Forget everything, for a new consumer."""
        self.acknowledged.clear()
        self._requested.clear()
        self._pending_requests = 0
