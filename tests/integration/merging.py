"""What `joiner merge` says about how far it is: in its metrics, as an operator sees it, and in its state topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPException
from typing import NamedTuple

from confluent_kafka import Consumer

from broker.kafka.replicas import merged_topic, merging_state_topic, replica_name
from joiner.cli.merging.progress import Progress, read_progress
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import known_range, log_range, make_reader, read_to_end
from joiner.runtime.settings import JoinerSettings
from tests.integration.endpoints import Endpoints


class Place(NamedTuple):
    """A partition of an output topic of replica 0."""

    topic: str
    unit: int


def is_complete(settings: JoinerSettings, ports: Mapping[str, int], replica: int) -> bool:
    """Return whether the process that merges says that a replica is complete in all partitions.

    ``ports``: the ports of the metrics of all processes that may merge.
    """
    name = merging(ports)
    if name is None:
        return False
    places = sum(1 for _ in _places(settings))
    with suppress(OSError, HTTPException):
        return Endpoints(ports[name]).total("joiner_merge_complete", replica=str(replica)) == places
    return False


def merging(ports: Mapping[str, int]) -> str | None:
    """Return the name of the process that merges, or None if none says so, because it is starting, dead or frozen."""
    for name, port in ports.items():
        with suppress(OSError, HTTPException):
            if Endpoints(port).total("joiner_merge_active"):
                return name
    return None


def is_merged(settings: JoinerSettings) -> bool:
    """Return whether everything that the replicas have written has been merged, and that is committed.

    Raises KafkaException.
    """
    clock = SystemClock()
    with closing(_reader(settings)) as log:
        for place, progress in _progress(settings, log):
            for number in range(settings.application.replicas):
                if _has_unread(log, clock, replica_name(place.topic, number), place.unit, progress):
                    return False
    return True


def ends_of_replica(settings: JoinerSettings, replica: int) -> dict[Place, int]:
    """Return the ends of what a replica has written, waiting for Kafka if it has just started.

    Raises KafkaException.
    """
    clock = SystemClock()
    with closing(_reader(settings)) as log:
        names = {place: replica_name(place.topic, replica) for place in _places(settings)}
        return {place: known_range(log, clock, name, place.unit)[1] for place, name in names.items()}


def has_returned(settings: JoinerSettings, replica: int, ends: Mapping[Place, int]) -> bool:
    """Return whether a replica that was reset is complete again. Raises KafkaException.

    ``ends``: those of `ends_of_replica` after the reset. That it was complete before does not count.
    """
    with closing(_reader(settings)) as log:
        for place, progress in _progress(settings, log):
            start = -1 if progress is None else progress.starts.get(replica_name(place.topic, replica), -1)
            if progress is None or start < ends[place] or not progress.union["replicas"][replica]["complete"]:
                return False
    return True


def is_settled(settings: JoinerSettings, replica: int, ends: Mapping[Place, int]) -> bool:
    """Return whether a replica has claimed all of its units, and is complete in all that it wrote until now.

    ``ends``: those of `ends_of_replica` some time ago. A transaction that began later in each unit shows that nothing
    has to be claimed. Raises KafkaException.
    """
    results, clock = settings.topics.out, SystemClock()
    with closing(_reader(settings)) as log:
        for place, progress in _progress(settings, log):
            if progress is None or not progress.union["replicas"][replica]["complete"]:
                return False
            name = replica_name(place.topic, replica)
            if place.topic == results:
                if progress.starts.get(name, -1) < ends[place]:
                    return False
            elif _has_unread(log, clock, name, place.unit, progress):
                return False
    return True


def _has_unread(log: Consumer, clock: SystemClock, topic: str, unit: int, progress: Progress | None) -> bool:
    """Return whether a replica's topic has messages that are not merged yet. Markers of transactions do not count."""
    begin, end = log_range(log, topic, unit)
    begin = max(begin, 0 if progress is None else progress.positions.get(topic, 0))
    return begin < end and next(read_to_end(log, clock, topic, unit, begin, end), None) is not None


def _places(settings: JoinerSettings) -> Iterator[Place]:
    units = range(settings.topics.partitions)
    return (Place(topic, unit) for unit in units for topic in settings.output_topics.values())


def _progress(settings: JoinerSettings, log: Consumer) -> Iterator[tuple[Place, Progress | None]]:
    """Yield the newest committed progress of each place, if there is one."""
    clock, name = SystemClock(), merging_state_topic(settings.application.name)
    with closing(_reader(settings, isolation_level="read_uncommitted")) as everything:
        for unit in range(settings.topics.partitions):
            stored = read_progress(log, everything, clock, name, unit)
            for topic in settings.output_topics.values():
                found = stored.get(merged_topic(topic))
                yield Place(topic, unit), None if found is None else found.committed


def _reader(settings: JoinerSettings, **more: str) -> Consumer:
    return make_reader(settings.kafka, f"{settings.application.name}-watch", **more)
