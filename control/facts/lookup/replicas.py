"""Reads which replica was first to write the last results, and how far `joiner merge` has got with each of them.

Only the ends of the partitions are read (`control.facts.lookup.tail`).
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from confluent_kafka import Consumer

from broker.kafka.replicas import merged_topic, merging_state_topic, replica_name
from broker.kafka.topics import topic_facts
from control.facts.lookup.leads import STRETCH_MS, Leads, ResultLog, leads_of
from control.facts.lookup.tail import Limits, Tail, make_tail_reader
from joiner.runtime.kafka.clients import log_range, make_admin
from joiner.runtime.membership.status.merging import MergedReplica, decode_replicas

if TYPE_CHECKING:
    from control.facts.lookup.one_at_a_time import Deadline
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

PARTITIONS_MAX: Final = 16
"""If there are more partitions, only this many are read, spread evenly over all of them."""

RESULTS_MAX: Final = 20_000
BYTES_MAX: Final = 8 * 1024 * 1024
"""How many offsets and bytes of each replica's results are read at most, from all partitions together."""

_STATE: Final = Limits(2_000, 512 * 1024)
"""How much is read from a partition to find the last record about the results. There is one for each transaction."""

_TIMEOUT_S: Final = 5.0


class Merged(msgspec.Struct, frozen=True):
    """What `joiner merge` has stored about the results. ``partitions``: the number of those about which it is known.

    ``accepted``, ``complete``: in how many of these each replica is, by number. ``at_ms``: when Kafka appended the
    newest of these records, in ms since the epoch.
    """

    partitions: int
    accepted: list[int]
    complete: list[int]
    at_ms: int


class ReplicasRead(NamedTuple):
    """What was read. ``partitions``: how many were. ``merged``: None if nothing is known of `joiner merge`."""

    partitions: int
    leads: Leads
    merged: Merged | None


def read_replicas(settings: JoinerSettings, clock: Clock, deadline: Deadline) -> ReplicasRead:
    """Read the ends of the replicas' results and of the state of merging. Topics that do not exist are left out.

    Raises `DeadlinePassed`, and KafkaException if Kafka does not answer.
    """
    application, out = settings.application, settings.topics.out
    topics = {number: replica_name(out, number) for number in range(application.replicas)}
    state = merging_state_topic(application.name)
    known = topic_facts(make_admin(settings.kafka), [*topics.values(), state], _TIMEOUT_S)
    topics = {number: topic for number, topic in topics.items() if topic in known}
    partitions = spread(settings.topics.partitions, PARTITIONS_MAX)
    logs = []
    found: list[tuple[list[MergedReplica], int]] = []
    with closing(make_tail_reader(settings)) as consumer:
        search = _Search(consumer, clock, deadline, len(partitions))
        for partition in partitions:
            logs.append(search.results(topics, partition))
            if state in known and (one := search.progress(state, partition, merged_topic(out))) is not None:
                found.append(one)
    merged = _merged(found, application.replicas) if found else None
    return ReplicasRead(len(partitions), leads_of(logs, application.replicas), merged)


def spread(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the numbers below ``count``, spread evenly over them."""
    return sorted({number * count // most for number in range(most)}) if count > most else list(range(count))


class _Search:
    """Reads the ends of the same partition of several topics."""

    def __init__(self, consumer: Consumer, clock: Clock, deadline: Deadline, partitions: int) -> None:
        """``partitions``: over how many the limits are shared out."""
        self._consumer, self._clock, self._deadline = consumer, clock, deadline
        self._limits = Limits(max(1, RESULTS_MAX // partitions), max(1, BYTES_MAX // partitions))

    def results(self, topics: dict[int, str], partition: int) -> dict[int, ResultLog]:
        """Return the newest results of each replica. ``topics``: by replica."""
        # The ends first, so that none of them has time to get ahead.
        spans = {number: log_range(self._consumer, topic, partition) for number, topic in topics.items()}
        return {number: self._log((topics[number], partition), span) for number, span in spans.items()}

    def _log(self, place: tuple[str, int], span: tuple[int, int]) -> ResultLog:
        tail = Tail(self._consumer, self._clock, place, span, limits=self._limits)
        log, newest_ms, oldest_ms = ResultLog(), 0, 0
        for part in tail.parts(self._deadline.check):
            for message in part:
                self._deadline.check()
                log.add(message.value(), int(message.timestamp()[1]))
            if part:
                oldest_ms = int(part[0].timestamp()[1])
                newest_ms = newest_ms or int(part[-1].timestamp()[1])
            if newest_ms - oldest_ms > STRETCH_MS:
                break
        log.since_ms = 0 if tail.is_whole else oldest_ms
        return log

    def progress(self, topic: str, partition: int, key: str) -> tuple[list[MergedReplica], int] | None:
        """Return the last record with a key, and when it was appended. Return None if it was not found near the end."""
        tail = Tail(
            self._consumer, self._clock, (topic, partition), log_range(self._consumer, topic, partition), limits=_STATE
        )
        for part in tail.parts(self._deadline.check):
            for message in reversed(part):
                if message.key() != key.encode() or message.value() is None:
                    continue
                found = decode_replicas(message.value() or b"")
                return None if found is None else (found, int(message.timestamp()[1]))
        return None


def _merged(found: list[tuple[list[MergedReplica], int]], replicas: int) -> Merged:
    accepted, complete = [0] * replicas, [0] * replicas
    for stored, _ in found:
        # There may have been more replicas, or fewer, when it was written.
        for number, one in enumerate(stored[:replicas]):
            accepted[number] += one.accepted
            complete[number] += one.complete
    return Merged(len(found), accepted, complete, max(at_ms for _, at_ms in found))
