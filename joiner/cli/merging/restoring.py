"""Continues the outputs of an application as they were merged last.

A dozen short logs are read for each partition, so that the time goes into waiting for Kafka. Partitions are therefore
restored side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.kafka.replicas import merged_topic, merging_group, merging_state_topic, replica_name
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
from joiner.library.merging.inputs import Place, input_ends
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import ReplicaUnion
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_reader

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from broker.kafka.topics import TopicFacts
    from joiner.runtime.settings import JoinerSettings

SIDE_BY_SIDE: Final = 8
"""How many partitions to restore at the same time. Each has two clients."""

_LOOK_S: Final = 0.05

_log = logging.getLogger(__name__)


class Stopped(Exception):
    """Raised if the process should not merge any more."""


@dataclass
class Restored:
    """An output, and from where to continue it.

    ``end``: an offset after everything in the merged topic. ``index``: where its messages are that are needed after a
    restart. ``progress``: what holds, or None if it is the beginning. ``is_committed``: whether that is what was
    committed. If not, it must be. ``positions``, ``starts``: see `Progress`.
    """

    merged: MergedPartition
    end: int
    index: SerialIndex
    progress: Progress | None
    is_committed: bool
    positions: dict[Place, int] = field(default_factory=dict)
    starts: dict[Place, int] = field(default_factory=dict)


class Restoring:
    """Restores all outputs.

    ``facts``: those of all topics that `merger.merge_topics` returns. ``remembered_max``: how many ids are remembered
    per output. ``pool``: restores partitions side by side. ``continues``: is called often meanwhile, by the thread that
    calls `run`.
    """

    def __init__(
        self,
        settings: JoinerSettings,
        clock: Clock,
        facts: Mapping[str, TopicFacts],
        remembered_max: int,
        pool: Executor,
        continues: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings, self._clock, self._facts = settings, clock, facts
        self._remembered_max, self._pool, self._continues = remembered_max, pool, continues
        self._is_stopped = False

    def run(self, wait_until_ended: Callable[[int, Consumer], None]) -> dict[Place, Restored]:
        """Restore all outputs. Return them by topic of replica 0 and partition.

        ``wait_until_ended``: is called with a partition and a read-committed consumer before the partition is read, and
        must wait until all earlier transactions there have ended. It is called by threads of the pool.

        Raises KafkaException, `MergeError` if an output cannot be continued, and `Stopped` if ``continues`` returns
        False. Then no more work is begun in the pool, and what is being done there ends at the next message.
        """
        numbers = range(self._settings.topics.partitions)
        waiting = {self._pool.submit(self._partition, number, wait_until_ended) for number in numbers}
        found: dict[Place, Restored] = {}
        try:
            while waiting:
                if not self._continues():
                    raise Stopped
                self._clock.wait_until_any_done(waiting, self._clock.monotonic_s() + _LOOK_S)
                done: set[Future[dict[Place, Restored]]] = {one for one in waiting if one.done()}
                waiting -= done
                while done:
                    # If a variable held the future, its error would keep the producer alive (see `clients.within`).
                    found |= done.pop().result()
        finally:
            self._is_stopped = True
            for one in waiting:
                one.cancel()
        return found

    def _check(self) -> None:
        if self._is_stopped:
            raise Stopped

    def _partition(self, number: int, wait_until_ended: Callable[[int, Consumer], None]) -> dict[Place, Restored]:
        """Restore all outputs of a partition. Runs in any thread."""
        settings, found = self._settings, {}
        with (
            closing(self._reader()) as reader,
            closing(self._reader(isolation_level="read_uncommitted")) as everything,
        ):
            wait_until_ended(number, reader)
            state_topic = merging_state_topic(settings.application.name)
            stored = read_progress(reader, everything, self._clock, state_topic, number)
            for topic in settings.output_topics.values():
                self._check()
                found[topic, number] = self._output(
                    (topic, number), stored.get(merged_topic(topic), Stored(None, [])), reader
                )
        return found

    def _reader(self, **more: str) -> Consumer:
        return make_reader(self._settings.kafka, merging_group(self._settings.application.name), **more)

    def _output(self, output: Place, stored: Stored, reader: Consumer) -> Restored:
        topic, number = output
        target, clock = merged_topic(topic), self._clock
        if any(one.merged != self._facts[target].topic_id for one in (stored.committed, *stored.tried) if one):
            message = (
                f"topic {target} was deleted and recreated, so that results which were merged are missing there. "
                f"{BEGIN_AGAIN}"
            )
            raise MergeError(message)
        application, time_unit = self._settings.application, self._settings.events.time_unit
        names = {replica_name(topic, replica): replica for replica in range(application.replicas)}
        applications = frozenset(replica_name(application.name, replica) for replica in range(application.replicas))
        merged = MergedPartition(ReplicaUnion(application.replicas, self._remembered_max), applications, time_unit)
        progress = true_progress(stored, reader, clock, target, number)
        is_committed = progress is stored.committed
        if progress is None:
            end, index = restore(merged, None, (), reader, clock, target, number, self._check)
            return Restored(merged, end, index, None, is_committed)
        known = {name: replica for name, replica in names.items() if name in progress.positions}
        same = {name: one for name, one in known.items() if progress.topics[name] == self._facts[name].topic_id}
        written = written_since(merged, progress, same, reader, clock, number)
        end, index = restore(merged, progress, written, reader, clock, target, number, self._check)
        for name, replica in known.items():
            if name not in same:
                _lose(merged, name, replica, input_ends(reader, merged.union, output))
        positions = {(name, number): progress.positions[name] for name in same}
        starts = {(name, number): progress.starts[name] for name in same if name in progress.starts}
        return Restored(merged, end, index, progress, is_committed, positions, starts)


def _lose(merged: MergedPartition, name: str, replica: int, ends: Mapping[str, int]) -> None:
    if not merged.union.lose(replica, ends):
        message = (
            f"topic {name} was deleted and recreated, and no other replica is complete, so results are missing. "
            f"{BEGIN_AGAIN}"
        )
        raise MergeError(message)
    _log.warning("topic %s was deleted and recreated; it is merged from its beginning", name)
