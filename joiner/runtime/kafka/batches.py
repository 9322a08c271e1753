"""Input batches: sorts consumed messages by unit and topic, and reads the range between two vectors.

Replays, and runners that plan their batches, read such ranges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import EOF_CODE, READ_WAIT_S, TIMEOUT_S, is_passing, timed_out
from joiner.runtime.kafka.transaction import offsets_as_text
from joiner.runtime.task.decode import Messages

_MANY: Final = 10_000
"""From this many messages on, a poll waits longer, so that it returns many at once."""
_MANY_WAIT_S: Final = 0.05

_Error = tuple[KafkaError, int | None, str | None]
"""An error, its partition and its topic."""


def messages_of(messages: Sequence[Message]) -> Messages:
    """Return the columns of messages of one partition, none of which is an error event.

    The loops are minimal, because they run for every record.
    """
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    has_gaps = last - first != len(messages) - 1
    return Messages(
        [message.offset() or 0 for message in messages] if has_gaps else list(range(first, last + 1)),
        [message.timestamp()[1] for message in messages],
        [message.value() for message in messages],
    )


def sort_messages(
    messages: Sequence[Message], topics: Sequence[str]
) -> tuple[dict[int, dict[str, Messages]], dict[int, dict[str, int]], list[_Error]]:
    """Sort messages of ``topics``. Return, by unit and topic, the messages and the ends of logs reached; and errors."""
    ends: dict[int, dict[str, int]] = {}
    errors: list[_Error] = []
    if any(faults := [message.error() for message in messages]):
        for message, error in zip(messages, faults, strict=True):
            if error is not None and error.code() == EOF_CODE:
                ends.setdefault(int(message.partition() or 0), {})[str(message.topic())] = int(message.offset() or 0)
            elif error is not None:
                errors.append((error, message.partition(), message.topic()))
        messages = [message for message, error in zip(messages, faults, strict=True) if error is None]
    # Messages of one partition come in long runs. `Message.topic` makes a new string at each call.
    units = np.array([message.partition() for message in messages], dtype=np.int64)
    changes = np.flatnonzero(np.diff(units)) + 1
    by_place: defaultdict[tuple[int, str], list[Message]] = defaultdict(list)
    for begin, end in pairwise([0, *changes.tolist(), len(messages)] if messages else []):
        run = messages[begin:end]
        if len(topics) == 1:
            by_place[int(units[begin]), topics[0]] += run
        else:
            for message in run:
                by_place[int(units[begin]), str(message.topic())].append(message)
    batches: dict[int, dict[str, Messages]] = {}
    for (unit, topic), batch in by_place.items():
        batches.setdefault(unit, {})[topic] = messages_of(batch)
    return batches, ends, errors


def read_range(
    consumer: Consumer, clock: Clock, unit: int, begin: Mapping[str, int], end: Mapping[str, int], at_once: int
) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
    """Yield the messages of a unit from ``begin`` up to ``end`` in parts: messages by topic, and the next offsets.

    Offsets are log positions, with or without a message; those of the last part are ``end``. A part has at most
    ``at_once`` messages. ``consumer`` is one of `make_reader`; it has no partitions afterwards. Raises KafkaException,
    also if nothing arrives for `TIMEOUT_S`.
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
            # Counted from now on, because the caller may have spent a long time on the part.
            deadline_s = clock.monotonic_s() + TIMEOUT_S
        elif clock.monotonic_s() > deadline_s:
            raise timed_out(f"unit {unit}: no records up to {offsets_as_text(end)} for {TIMEOUT_S:.0f} s")
