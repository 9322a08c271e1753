"""Merges from what was committed until an error. After an error, a new session begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING

from broker.kafka.replicas import merged_topic, merging_group, replica_name
from joiner.cli.merging.output import MergedOutput
from joiner.cli.merging.progress import Progress
from joiner.library.merging.inputs import SHORT_QUEUE, Place, ReplicaInputs, Source
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_consumer, make_reader

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from broker.kafka.topics import TopicFacts
    from joiner.cli.merging.restoring import Restoring
    from joiner.runtime.settings import JoinerSettings

_BATCH_MESSAGES: Final = 2_000
_FETCHED_KIB: Final = 64 * 1024

COMPLETE_S: Final = 10.0
"""How often positions are committed although there were no messages."""

_WAIT_MIN_S: Final = 0.001
_WAIT_MAX_S: Final = 0.5
"""The longest wait for messages. `application.commit_interval` may be longer than a member of a group may be silent."""


class Session:
    """The outputs of an application as they are merged between two errors.

    ``partitions``: the unions, by the topic of replica 0 and the partition.
    """

    def __init__(
        self, settings: JoinerSettings, clock: Clock, facts: Mapping[str, TopicFacts], restoring: Restoring
    ) -> None:
        """Restore what was committed. See `Restoring` for ``facts``, and `Restoring.run` for what it raises."""
        self._settings, self._clock, self._facts = settings, clock, facts
        self._sources = {
            (replica_name(topic, replica), number): Source(replica, (topic, number))
            for topic in settings.output_topics.values()
            for number in range(settings.topics.partitions)
            for replica in range(settings.application.replicas)
        }
        self._wait_s = min(max(_WAIT_MIN_S, settings.application.commit_interval / 1e9), _WAIT_MAX_S)
        with ExitStack() as stack:
            # The producer comes first: it ends the last transaction, and fences whoever has begun it.
            self._output = stack.enter_context(closing(MergedOutput(settings, clock)))
            fences = self._output.fence()

            def wait_until_ended(number: int, reader: Consumer) -> None:
                self._output.wait_until_ended(fences[number], number, reader)

            restored = restoring.run(wait_until_ended)
            self.partitions = {output: one.merged for output, one in restored.items()}
            self._indexes = {output: one.index for output, one in restored.items()}
            """By output, where the messages of the merged topic are that are needed after a restart."""
            self._stored = {output: one.progress for output, one in restored.items() if one.progress is not None}
            """The progress of each output that was stored last."""
            self._repaired = {output for output, one in restored.items() if not one.is_committed}
            """The outputs of which another progress holds than the one that was committed. It is to be committed."""
            self._output.ends = {output: one.end for output, one in restored.items()}
            self._output.last = {output: progress.end for output, progress in self._stored.items()}
            positions = {place: at for one in restored.values() for place, at in one.positions.items()}
            starts = {place: at for one in restored.values() for place, at in one.starts.items()}
            self._committed, self._committed_s = dict(positions), clock.monotonic_s()
            consumer = make_consumer(
                settings.kafka,
                merging_group(settings.application.name),
                client_id=settings.application.instance,
                enable_partition_eof=True,
                fetch_queue_backoff_ms=2,
                queued_max_messages_kbytes=_FETCHED_KIB,
                **SHORT_QUEUE,
            )
            stack.callback(consumer.close)
            self._inputs = ReplicaInputs(consumer, self._sources, self.partitions, positions, starts=starts)
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

    def leads(self) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
        """Return the sums of `Leads.counts` and `Leads.lead_ms`, by topic and replica."""
        counts: Counter[tuple[str, ...]] = Counter()
        lead_ms: Counter[tuple[str, ...]] = Counter()
        for (topic, _), merged in self.partitions.items():
            counts.update({(topic, str(replica)): count for replica, count in merged.leads.counts.items()})
            lead_ms.update({(topic, str(replica)): sum_ms for replica, sum_ms in merged.leads.lead_ms.items()})
        return counts, lead_ms

    def close(self) -> None:
        """Close the clients, and abort an open transaction."""
        self._stack.close()

    def _commit(self) -> bool:
        now_s = self._clock.monotonic_s()
        is_due = now_s - self._committed_s > COMPLETE_S
        # What is no message, such as the marker of a transaction, need not be committed at once.
        positions = self._inputs.positions()
        reached = positions if is_due else self._inputs.decided
        before = {place: self._committed.get(place, OFFSET_BEGINNING) for place in positions}
        # A position goes back if the messages there were deleted.
        moved = {
            place
            for place, at in before.items()
            if reached[place] > at or positions[place] < at or self._sources[place].output in self._repaired
        }
        if is_due:
            self._committed_s = now_s
        if not moved:
            return False
        self._output.flush()
        outputs = {self._sources[place].output for place in moved}
        progress = {output: self._progress(output) for output in outputs}
        to_check = self._output.commit(progress)
        self._stored |= progress
        self._repaired.clear()
        if to_check:
            # If Kafka has not ended the transaction, the next session repairs that.
            with closing(make_reader(self._settings.kafka, merging_group(self._settings.application.name))) as reader:
                self._output.check_ended(to_check, reader)
        self._committed |= {place: at for place, at in positions.items() if self._sources[place].output in outputs}
        return True

    def _progress(self, output: Place) -> Progress:
        merged, positions, starts = self.partitions[output], self._inputs.positions(), self._inputs.starts
        index, oldest = self._indexes[output], merged.union.oldest_serial()
        # All messages are confirmed, so that the end is exact.
        index.add(merged.count, self._output.ends[output])
        found = index.find(merged.count if oldest is None else oldest)
        last, end = self._stored.get(output), self._output.last.get(output, 0)
        before = last
        if last is not None:
            before = last.before if last.end == end else msgspec.structs.replace(last, before=None)
        places = [place for place, source in self._sources.items() if source.output == output]
        return Progress(
            {place[0]: positions[place] for place in places},
            {topic: self._facts[topic].topic_id for topic, _ in places},
            merged.union.summary(),
            merged.count,
            None if oldest is None else found,
            {place[0]: starts[place] for place in places if place in starts},
            self._facts[merged_topic(output[0])].topic_id,
            end,
            before,
        )
