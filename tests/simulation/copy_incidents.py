"""Incidents of repartitioning: what operators, retention and the broker do to topics, copies and offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.wire.origin import ORIGIN_HEADER, decode_origin
from joiner.runtime.repartition.progress import decode_progress
from joiner.runtime.settings import JoinerSettings
from tests.simulation.copy_verdict import begin_of_copying
from tests.simulation.memory_log import Log
from tests.simulation.world import World


class CopyIncidents:
    """Causes incidents in a world. ``stop_all``: stops all processes, and calls a function once they are gone."""

    def __init__(self, world: World, settings: JoinerSettings, stop_all: Callable[[Callable[[], None]], bool]) -> None:
        self._world, self._kafka, self._draw = world, world.kafka, world.draw
        self._settings, self._group, self._stop_all = settings, settings.repartition_group, stop_all
        self.begins: dict[tuple[str, int], int] = {}
        """Where the originals begin that must be copied, if that is not 0: a repartition topic was recreated."""
        self._old: dict[str, int] = {}
        """The number of partitions that a copied topic had when copying began."""
        self._note_old(*settings.repartitioned)
        self.is_lost = self.is_doubtful = False
        """Whether committed offsets may be missing, and whether the copies may be wrong until they are made again."""
        self._is_replaced = self._is_expiring = False
        """Whether a repartition topic was recreated, and whether offsets expire once all processes have stopped."""

    def where_it_begins(self) -> dict[tuple[str, int], int]:
        """Return where the originals begin that must be copied, if that is not 0."""
        if self._settings.application.start == "earliest":
            return self.begins
        found = dict(self.begins)
        for topic, old in self._old.items():
            # One that was added later must be copied as a whole.
            found |= {
                (topic, number): begin_of_copying(self._kafka, self._settings, topic, number) for number in range(old)
            }
        return found

    def let_one_happen(self) -> None:
        """Cause a random incident."""
        self._draw.choice(_INCIDENTS)(self)

    def reset(self) -> None:
        """Delete the copies and the offsets, as an operator does."""
        for target in self._kafka.topics.keys() & {*self._settings.repartitioned.values()}:
            self._kafka.delete_topic(target)
        self._kafka.committed.pop(self._group, None)
        self._kafka.notes.pop(self._group, None)
        self.begins = self._lows(*self._settings.repartitioned)
        self._note_old(*self._settings.repartitioned)

    def expire_offsets(self) -> None:
        """Let the group be empty for so long that Kafka deletes its offsets, except those that may still change."""

        def expire() -> None:
            self.is_lost, self._is_expiring = True, False
            offsets = self._kafka.committed.get(self._group, {})
            for place in [one for one in offsets if not self._kafka.are_unstable(self._group, [one])]:
                del offsets[place], self._kafka.notes[self._group][place]
            for topic, target in self._settings.repartitioned.items():
                logs = self._kafka.topics[target].logs if target in self._kafka.topics else []
                if not any(entry.is_committed for log in logs for entry in log.entries):
                    # Nothing tells any more that copying has begun.
                    self._note_old(topic)

        # After a repartition topic was recreated, only the offsets tell that the copies in it are not the first ones.
        if not self._is_replaced and self._stop_all(expire):
            self._is_expiring = True
            self._did("offsets expired")

    def recreate_source(self) -> None:
        """Delete a copied topic and create it again. Kafka deletes its offsets."""
        topic = self._draw.choice([*self._settings.repartitioned])
        self._recreate(topic, self._draw.choice([1, 2, 3]))
        self.begins = {place: at for place, at in self.begins.items() if place[0] != topic}
        self._note_old(topic)
        self._did("source recreated")

    def recreate_target(self) -> None:
        """Delete a repartition topic and create it again."""
        topic, target = self._draw.choice([*self._settings.repartitioned.items()])
        if target in self._kafka.topics and not self.is_lost and not self._is_expiring:
            self._is_replaced = True
            self._recreate(target, self._settings.topics.partitions)
            self.begins |= self._lows(topic)
            self._note_old(topic)
            self._did("target recreated")

    def _recreate(self, topic: str, partitions: int) -> None:
        config = dict(self._kafka.topics[topic].config)
        self._kafka.delete_topic(topic)
        self._kafka.create_topic(topic, partitions, config)
        # What has been copied until now may be copied again, or be missing, until copying is refused or starts over.
        self.is_doubtful = True
        for group in self._kafka.groups.values():
            group.notice_partitions()

    def add_partition(self) -> None:
        topic = self._draw.choice([*self._settings.repartitioned])
        self._kafka.add_partition(topic)
        if not self._has_begun(topic):
            self._note_old(topic)
        self._did("partition added")

    def remove_originals(self) -> None:
        """Delete what was copied, as retention does."""
        if self.is_doubtful:
            return
        for (topic, partition), end in self._kafka.committed.get(self._group, {}).items():
            log = self._kafka.log(topic, partition)
            # The last one remains. Behind its copy, nobody could tell markers that are gone from messages.
            copied = [entry.offset for entry in log.entries if entry.is_committed and entry.offset < end]
            log.remove_before(self._draw.randint(0, max(copied, default=0)))
        self._did("retention of originals")

    def remove_copies(self) -> None:
        """Delete old copies, but not the last one of any partition."""
        if self.is_doubtful:
            return
        for target in self._settings.repartitioned.values():
            logs = self._kafka.topics[target].logs if target in self._kafka.topics else []
            last: dict[int, tuple[int, Log, int]] = {}
            for log in logs:
                for entry in log.entries:
                    if entry.is_committed:
                        _, source, offset, _ = decode_origin(dict(entry.headers or [])[ORIGIN_HEADER] or b"")
                        last[source] = max(
                            last.get(source, (-1, log, 0)), (offset, log, entry.offset), key=lambda one: one[0]
                        )
            for log in logs:
                kept = [at for _, where, at in last.values() if where is log]
                log.remove_before(self._draw.randint(0, min([log.stable_end, *kept])))
        self._did("retention of copies")

    def damage_reads(self) -> None:
        self._kafka.damaged += self._draw.randint(1, 3)
        self._did("errors inside a batch")

    def _has_begun(self, topic: str) -> bool:
        """Return whether offsets are committed that count for the repartition topic that exists now."""
        target = self._kafka.topics.get(self._settings.repartitioned[topic])
        notes = self._kafka.notes.get(self._group, {})
        found = [decode_progress(note) for (name, _), note in notes.items() if name == topic]
        return target is not None and any(one is not None and one.target == target.topic_id for one in found)

    def _note_old(self, *topics: str) -> None:
        self._old |= {topic: len(self._kafka.topics[topic].logs) for topic in topics}

    def _did(self, what: str) -> None:
        self._world.counts[what] += 1
        self._world.note(what)

    def _lows(self, *topics: str) -> dict[tuple[str, int], int]:
        return {(topic, partition): log.low for topic, partition, log in self._kafka.logs() if topic in topics}


_INCIDENTS: Final[tuple[Callable[[CopyIncidents], Any], ...]] = (
    CopyIncidents.expire_offsets,
    CopyIncidents.expire_offsets,
    CopyIncidents.recreate_source,
    CopyIncidents.recreate_target,
    CopyIncidents.add_partition,
    CopyIncidents.remove_originals,
    CopyIncidents.remove_copies,
    CopyIncidents.damage_reads,
)
