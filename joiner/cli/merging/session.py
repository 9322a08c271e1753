"""Merges from what was committed until an error. After an error, a new session begins."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING

from broker.kafka.replicas import merged_topic, merging_group, merging_state_topic, replica_name
from joiner.cli.merging.output import MergedOutput
from joiner.cli.merging.progress import (
    BEGIN_AGAIN,
    Progress,
    Stored,
    read_progress,
    restore,
    true_progress,
    written_since,
)
from joiner.cli.merging.serial_index import SerialIndex
from joiner.library.merging.inputs import Place, ReplicaInputs, Source, input_ends
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import ReplicaUnion
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_consumer, make_reader

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from broker.kafka.topics import TopicFacts
    from joiner.runtime.settings import JoinerSettings

_BATCH_MESSAGES: Final = 5_000
_FETCHED_KIB: Final = 64 * 1024

COMPLETE_S: Final = 10.0
"""How often positions are committed although there were no messages."""

_WAIT_MIN_S: Final = 0.001
_WAIT_MAX_S: Final = 0.5
"""The longest wait for messages. `application.commit_interval` may be longer than a member of a group may be silent."""

_log = logging.getLogger(__name__)


class Stopped(Exception):
    """Raised if the process should not merge any more."""


class Session:
    """The outputs of an application as they are merged between two errors.

    ``partitions``: the unions, by the topic of replica 0 and the partition.
    """

    def __init__(
        self,
        settings: JoinerSettings,
        clock: Clock,
        facts: Mapping[str, TopicFacts],
        remembered_max: int,
        continues: Callable[[], bool] = lambda: True,
    ) -> None:
        """Restore what was committed. Raises KafkaException, and `MergeError` if it cannot be continued.

        ``facts``: those of all topics that `merger.merge_topics` returns. ``continues``: is called often meanwhile; if
        it returns False, raises `Stopped`.
        """
        self._continues = continues
        self._settings, self._clock, self._facts = settings, clock, facts
        self.partitions: dict[Place, MergedPartition] = {}
        self._sources: dict[Place, Source] = {}
        self._positions: dict[Place, int] = {}
        self._starts: dict[Place, int] = {}
        self._indexes: dict[Place, SerialIndex] = {}
        """By output, where the messages of the merged topic are that are needed after a restart."""
        self._stored: dict[Place, Progress] = {}
        """The progress of each output that was stored last."""
        self._repaired: set[Place] = set()
        """The outputs of which another progress holds than the one that was committed. It is to be committed."""
        self._wait_s = min(max(_WAIT_MIN_S, settings.application.commit_interval / 1e9), _WAIT_MAX_S)
        with ExitStack() as stack:
            # The producer comes first: it ends the last transaction, and fences whoever has begun it.
            self._output = stack.enter_context(closing(MergedOutput(settings, clock)))
            self._restore(remembered_max)
            self._committed, self._committed_s = dict(self._positions), clock.monotonic_s()
            consumer = make_consumer(
                settings.kafka,
                merging_group(settings.application.name),
                client_id=settings.application.instance,
                enable_partition_eof=True,
                fetch_queue_backoff_ms=2,
                queued_max_messages_kbytes=_FETCHED_KIB,
            )
            stack.callback(consumer.close)
            self._inputs = ReplicaInputs(consumer, self._sources, self.partitions, self._positions, starts=self._starts)
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

    def _restore(self, remembered_max: int) -> None:
        settings = self._settings
        replicas, name = settings.application.replicas, settings.application.name
        applications = frozenset(replica_name(name, replica) for replica in range(replicas))
        with (
            closing(self._reader()) as reader,
            closing(self._reader(isolation_level="read_uncommitted")) as everything,
        ):
            self._output.fence(reader)
            for number in range(settings.topics.partitions):
                stored = read_progress(reader, everything, self._clock, merging_state_topic(name), number)
                for topic in settings.output_topics.values():
                    self._check()
                    merged = MergedPartition(
                        ReplicaUnion(replicas, remembered_max), applications, settings.events.time_unit
                    )
                    self.partitions[topic, number] = merged
                    for replica in range(replicas):
                        place = replica_name(topic, replica), number
                        self._sources[place] = Source(replica, (topic, number))
                    self._restore_output(
                        (topic, number), merged, stored.get(merged_topic(topic), Stored(None, [])), reader
                    )

    def _check(self) -> None:
        if not self._continues():
            raise Stopped

    def _reader(self, **more: str) -> Consumer:
        return make_reader(self._settings.kafka, merging_group(self._settings.application.name), **more)

    def _restore_output(self, output: Place, merged: MergedPartition, stored: Stored, reader: Consumer) -> None:
        topic, number = output
        target, clock = merged_topic(topic), self._clock
        if any(one.merged != self._facts[target].topic_id for one in (stored.committed, *stored.tried) if one):
            message = (
                f"topic {target} was deleted and recreated, so that results which were merged are missing there. "
                f"{BEGIN_AGAIN}"
            )
            raise MergeError(message)
        progress = true_progress(stored, reader, clock, target, number)
        if progress is not stored.committed:
            self._repaired.add(output)
        if progress is None:
            self._continue_output(output, restore(merged, None, (), reader, clock, target, number, self._check))
            return
        self._stored[output], self._output.last[output] = progress, progress.end
        known = {
            name: source.replica
            for (name, _), source in self._sources.items()
            if source.output == output and name in progress.positions
        }
        same = {name: one for name, one in known.items() if progress.topics[name] == self._facts[name].topic_id}
        written = written_since(merged, progress, same, reader, clock, number)
        self._continue_output(output, restore(merged, progress, written, reader, clock, target, number, self._check))
        for name, replica in known.items():
            if name not in same:
                self._lose(merged, name, replica, input_ends(reader, merged.union, output))
        self._positions |= {(name, number): progress.positions[name] for name in same}
        self._starts |= {(name, number): progress.starts[name] for name in same if name in progress.starts}

    def _continue_output(self, output: Place, restored: tuple[int, SerialIndex]) -> None:
        self._output.ends[output], self._indexes[output] = restored

    def _lose(self, merged: MergedPartition, name: str, replica: int, ends: Mapping[str, int]) -> None:
        if not merged.union.lose(replica, ends):
            message = (
                f"topic {name} was deleted and recreated, and no other replica is complete, so results are missing. "
                f"{BEGIN_AGAIN}"
            )
            raise MergeError(message)
        _log.warning("topic %s was deleted and recreated; it is merged from its beginning", name)

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
            with closing(self._reader()) as reader:
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
