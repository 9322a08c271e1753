"""Reading the input between two vectors: a silent replay, and the batches of a runner that plans where they end."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from joiner.run.clients import READ_WAIT_S, TIMEOUT_S, timed_out
from joiner.run.intake import Messages, sort_messages
from joiner.run.transaction import offsets_as_text

_AT_ONCE: Final = 50_000
"""Messages that are taken out of the library at a time."""

_MANY: Final = 10_000
_MANY_WAIT_S: Final = 0.05
"""For so many to come from Kafka at once; not where few are to be read, which are there sooner."""


def read_range(consumer: Consumer, unit: int, begin: Mapping[str, int], end: Mapping[str, int]) -> dict[str, Messages]:
    """All messages of a unit from one vector up to another, by topic; both are positions, which need no message.

    ``consumer`` is one of `make_reader`; it is left without partitions. Raises KafkaException, also where nothing comes
    for `TIMEOUT_S`.
    """
    at = {topic: start for topic, start in begin.items() if start < end[topic]}
    found = {topic: Messages([], [], []) for topic in at}
    consumer.assign([TopicPartition(topic, unit, start) for topic, start in at.items()])
    deadline_s = time.monotonic() + TIMEOUT_S
    while missing := {topic: end[topic] - reached for topic, reached in at.items() if reached < end[topic]}:
        count = sum(missing.values())
        messages = consumer.consume(min(count, _AT_ONCE), _MANY_WAIT_S if count > _MANY else READ_WAIT_S)
        parts, met, errors = sort_messages(messages, list(found))
        if errors:
            raise KafkaException(errors[0][0])
        for topic, part in parts.get(unit, {}).items():
            if topic in missing:
                found[topic].extend(part.part(0, bisect_left(part.offset, end[topic])))
                at[topic] = part.offset[-1] + 1
                deadline_s = time.monotonic() + TIMEOUT_S
        for topic, position in met.get(unit, {}).items():
            if topic in missing:
                at[topic] = max(at[topic], position)
        if time.monotonic() > deadline_s:
            raise timed_out(f"unit {unit}: no records up to {offsets_as_text(end)} for {TIMEOUT_S:.0f} s")
    consumer.unassign()
    return {topic: messages for topic, messages in found.items() if len(messages)}
