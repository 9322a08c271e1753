"""Merges from what was committed until an error. After an error, a new session begins."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import OFFSET_BEGINNING

from joiner.cli.merging.leadership import merge_group
from joiner.cli.merging.output import MergedOutput, state_topic
from joiner.cli.merging.progress import Progress, read_progress, restore
from joiner.library.merging.inputs import Place, ReplicaInputs, Source
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import ReplicaUnion
from joiner.library.merging.topics import merged_topic, replica_name
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_consumer, make_reader

if TYPE_CHECKING:
    from broker.kafka.topics import TopicFacts
    from joiner.runtime.settings import JoinerSettings

_BATCH_MESSAGES: Final = 5_000
_FETCHED_KIB: Final = 64 * 1024

_COMPLETE_S: Final = 10.0
"""How often positions are committed although there were no messages."""

_log = logging.getLogger(__name__)


class Session:
    """The outputs of an application as they are merged between two errors.

    ``partitions``: the unions, by the topic of replica 0 and the partition.
    """

    def __init__(
        self, settings: JoinerSettings, clock: Clock, facts: Mapping[str, TopicFacts], remembered_max: int
    ) -> None:
        """Restore what was committed. Raises KafkaException, and `MergeError` if it cannot be continued.

        ``facts``: those of all topics that `merger.merge_topics` returns.
        """
        self._settings, self._clock, self._facts = settings, clock, facts
        self.partitions: dict[Place, MergedPartition] = {}
        self._sources: dict[Place, Source] = {}
        self._positions: dict[Place, int] = {}
        self._wait_s = settings.application.commit_interval / 1e9
        with ExitStack() as stack:
            # The producer comes first: it ends the last transaction, and fences whoever has begun it.
            self._output = stack.enter_context(closing(MergedOutput(settings, clock)))
            self._restore(remembered_max)
            self._committed, self._committed_s = dict(self._positions), clock.monotonic_s()
            consumer = make_consumer(
                settings.kafka,
                merge_group(settings),
                client_id=settings.application.instance,
                enable_partition_eof=True,
                fetch_queue_backoff_ms=2,
                queued_max_messages_kbytes=_FETCHED_KIB,
            )
            stack.callback(consumer.close)
            self._inputs = ReplicaInputs(
                consumer,
                self._sources,
                self.partitions,
                self._positions,
                serial=lambda output: self._output.ends[output],
                before_return=self._commit,
            )
            self._stack = stack.pop_all()

    def turn(self) -> bool:
        """Read, write what is new, and commit. Return whether there was anything to commit.

        Raises KafkaException, and `MergeError` if results were lost or cannot be merged.
        """
        for source, message in self._inputs.take(_BATCH_MESSAGES, self._wait_s):
            self._output.write(source.output, source.replica, message)
        return self._commit()

    def waiting(self) -> int:
        """Return at how many places memory is full, so that another replica is waited for."""
        return self._inputs.waiting()

    def verdicts(self) -> Counter[tuple[str, ...]]:
        """Return how many messages there were, by topic, replica and verdict."""
        found: Counter[tuple[str, ...]] = Counter()
        for (topic, _), merged in self.partitions.items():
            for (verdict, replica), count in merged.verdicts.items():
                found[topic, str(replica), verdict] += count
        return found

    def close(self) -> None:
        """Close the clients, and abort an open transaction."""
        self._stack.close()

    def _restore(self, remembered_max: int) -> None:
        settings = self._settings
        replicas, name = settings.application.replicas, settings.application.name
        applications = frozenset(replica_name(name, replica) for replica in range(replicas))
        with closing(make_reader(settings.kafka, merge_group(settings))) as reader:
            for number in range(settings.topics.partitions):
                stored = read_progress(reader, self._clock, state_topic(settings), number)
                for topic in settings.output_topics.values():
                    output, target = (topic, number), merged_topic(topic)
                    union = ReplicaUnion(replicas, remembered_max)
                    merged = MergedPartition(union, applications, settings.events.time_unit)
                    progress = stored.get(target)
                    self._output.ends[output] = restore(merged, progress, reader, self._clock, target, number)
                    self.partitions[output] = merged
                    for replica in range(replicas):
                        place = replica_name(topic, replica), number
                        self._sources[place] = Source(replica, output)
                        self._restore_position(place, progress)

    def _restore_position(self, place: Place, progress: Progress | None) -> None:
        topic, _ = place
        if progress is None or topic not in progress.positions:
            return
        if progress.topics[topic] == self._facts[topic].topic_id:
            self._positions[place] = progress.positions[topic]
            return
        source = self._sources[place]
        if not self.partitions[source.output].union.lose(source.replica, self._output.ends[source.output]):
            message = (
                f"topic {topic} was deleted and recreated, and no other replica is complete, so results are missing: "
                "delete the merged topics and their state topic, and merge again"
            )
            raise MergeError(message)
        _log.warning("topic %s was deleted and recreated; it is merged from its beginning", topic)

    def _commit(self) -> bool:
        now_s = self._clock.monotonic_s()
        is_due = now_s - self._committed_s > _COMPLETE_S
        # What is no message, such as the marker of a transaction, need not be committed at once.
        positions = self._inputs.positions()
        reached = positions if is_due else self._inputs.decided
        before = {place: self._committed.get(place, OFFSET_BEGINNING) for place in positions}
        # A position goes back if the messages there were deleted.
        moved = {place for place, at in before.items() if reached[place] > at or positions[place] < at}
        if is_due:
            self._committed_s = now_s
        if not moved:
            return False
        self._output.flush()
        outputs = {self._sources[place].output for place in moved}
        self._output.commit({output: self._progress(output) for output in outputs})
        self._committed = positions
        return True

    def _progress(self, output: Place) -> Progress:
        union, positions = self.partitions[output].union, self._inputs.positions()
        topics = [topic for (topic, _), source in self._sources.items() if source.output == output]
        return Progress(
            {topic: positions[topic, output[1]] for topic in topics},
            {topic: self._facts[topic].topic_id for topic in topics},
            union.summary(),
            union.oldest_serial(),
        )
