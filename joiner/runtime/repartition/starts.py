"""Finds the offset from which an assigned partition is copied: usually the committed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joiner.runtime.kafka.clients import log_range
from joiner.runtime.repartition.prior import Prior, RepartitionError, recreated
from joiner.runtime.repartition.progress import Progress, decode_progress, shown_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Consumer, TopicPartition

    from broker.kafka.topics import TopicFacts
    from joiner.runtime.repartition.merging import Place
    from joiner.runtime.settings import JoinerSettings


class Starts:
    """Where the partitions that a member of the group gets are continued from."""

    def __init__(
        self,
        settings: JoinerSettings,
        facts: Mapping[str, TopicFacts],
        prior: Mapping[Place, Prior],
        consumer: Consumer,
    ) -> None:
        """``facts`` and ``prior``: see `SourceReader`."""
        self._settings, self._facts, self._prior, self._consumer = settings, facts, prior, consumer

    def of(self, committed: TopicPartition) -> tuple[int, Progress]:
        """Return the offset from which to copy a partition, and the note for its offsets.

        ``committed``: its committed offset. Raises `RepartitionError` if it cannot be copied, and KafkaException.
        """
        target = self._settings.repartitioned[committed.topic]
        (key, *_) = [shown_key(stream.key) for stream in self._settings.mapped_streams(target)]
        ids = self._facts[committed.topic].topic_id, self._facts[target].topic_id
        at, before = committed.offset, decode_progress(committed.metadata)
        if at >= 0 and before is None:
            # An operator has set the offset.
            before = Progress(*ids, key, at)
        if at < 0 or before is None or before.target != ids[1]:
            start, at = self._continue_from(committed, target)
            before = Progress(*ids, key, start)
        self._check_same(committed.topic, before, Progress(*ids, key, before.start))
        return at, before

    def _continue_from(self, committed: TopicPartition, target: str) -> tuple[int, int]:
        """Return where copying began and where to continue, if the committed offset does not say that."""
        topic, number = committed.topic, committed.partition
        prior = self._prior.get((topic, number))
        is_new = prior is None and committed.offset < 0 and number >= self._facts[topic].partitions
        if not is_new and (prior is None or prior[:2] != (committed.offset, committed.metadata or "")):
            message = f"the committed offset of {topic} partition {number} has changed since it was read"
            raise RepartitionError(message)
        if prior is None or prior.first is None or prior.last is None:
            low, high = log_range(self._consumer, topic, number)
            # A partition that was added after copying of its topic had begun is copied as a whole. An older one of
            # which there are no copies may be, too: that is better than leaving out what has arrived in the meantime.
            is_whole = prior is None or prior.has_begun or self._settings.application.start == "earliest"
            at = low if is_whole else high
            return at, at
        if committed.offset >= 0:
            message = (
                f"{target} was deleted and recreated, and already holds copies of {topic} partition {number}, which "
                "would be copied a second time: stop the joiner and all processes that repartition, and start over "
                f"with `joiner reset`, which deletes {target}"
            )
            raise RepartitionError(message)
        return prior.first, prior.last + 1

    def _check_same(self, topic: str, before: Progress, now: Progress) -> None:
        if before.source != now.source:
            raise recreated(self._settings, topic)
        if before.key != now.key:
            message = (
                f"{topic} was copied with key = {before.key!r}, but now it is {now.key!r}, so copies of the same thing "
                "would be in different partitions: restore the key, or give the application a new name"
            )
            raise RepartitionError(message)
