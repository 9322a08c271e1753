"""Reading the input between two offset vectors: for silent replays, and for runners that plan their batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches import sort_messages
from joiner.runtime.kafka.clients import READ_WAIT_S, TIMEOUT_S, is_passing, timed_out
from joiner.runtime.kafka.transaction import offsets_as_text
from joiner.runtime.task.decode import Messages

_MANY: Final = 10_000
"""From so many messages on, a poll waits longer, to return many at once."""
_MANY_WAIT_S: Final = 0.05


def read_range(
    consumer: Consumer, clock: Clock, unit: int, begin: Mapping[str, int], end: Mapping[str, int], at_once: int
) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
    """The messages of a unit from ``begin`` up to ``end``, in parts: messages by topic, and the offsets after them.

    Offsets are positions, with or without a message; the last ones are ``end``. A part has at most ``at_once``
    messages. ``consumer`` is one of `make_reader`; in the end it has no partitions. Raises KafkaException, also if
    nothing arrives for `TIMEOUT_S`.
    """
    vector = dict(begin)
    topics = [topic for topic, at in begin.items() if at < end[topic]]
    consumer.assign([TopicPartition(topic, unit, begin[topic]) for topic in topics])
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    while missing := {topic: end[topic] - vector[topic] for topic in topics if vector[topic] < end[topic]}:
        count = sum(missing.values())
        messages = consumer.consume(min(count, at_once), _MANY_WAIT_S if count > _MANY else READ_WAIT_S)
        parts, met, errors = sort_messages(messages, topics)
        for error, partition, _ in errors:
            if not is_passing(error, partition):
                raise KafkaException(error)
        found = {topic: part for topic, part in parts.get(unit, {}).items() if topic in missing}
        reached = {topic: part.offset[-1] + 1 for topic, part in found.items()}
        for topic, position in met.get(unit, {}).items():
            reached[topic] = max(reached.get(topic, 0), position)
        before = dict(vector)
        vector |= {topic: min(max(at, vector[topic]), end[topic]) for topic, at in reached.items()}
        if through := [TopicPartition(topic, unit) for topic in missing if vector[topic] == end[topic]]:
            # The rest of its log must not be fetched while the others are read.
            consumer.incremental_unassign(through)
        if vector != before:
            wanted = {topic: part.part(0, bisect_left(part.offset, end[topic])) for topic, part in found.items()}
            yield {topic: part for topic, part in wanted.items() if len(part)}, dict(vector)
            # From now on, as the caller took its time with the part.
            deadline_s = clock.monotonic_s() + TIMEOUT_S
        elif clock.monotonic_s() > deadline_s:
            raise timed_out(f"unit {unit}: no records up to {offsets_as_text(end)} for {TIMEOUT_S:.0f} s")
