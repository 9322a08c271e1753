"""Reads a unit's input between two offset vectors, for replays."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.reader import ReaderOptions, make_batch_reader
from joiner.runtime.kafka.clients import READ_WAIT_S, TIMEOUT_S, is_passing, timed_out
from joiner.runtime.kafka.transaction import offsets_as_text
from joiner.runtime.task.decoding.messages import Messages

_MANY: Final = 10_000
"""If more messages than this remain to be read, each poll waits longer, so that it returns larger batches."""
_MANY_WAIT_S: Final = 0.05

_AS_OBJECTS: Final = ReaderOptions()


def read_range(
    consumer: Consumer,
    clock: Clock,
    unit: int,
    begin: Mapping[str, int],
    end: Mapping[str, int],
    at_once: int,
    *,
    options: ReaderOptions = _AS_OBJECTS,
    check: Callable[[], None] = lambda: None,
) -> Generator[tuple[dict[str, Messages], dict[str, int]], None, None]:
    """Read the input of a unit from ``begin`` up to ``end``, and yield it in parts of at most ``at_once`` messages.

    Each part consists of its messages by topic and, for each topic, the offset to continue from. There need not be a
    message at that offset; after the last part, the offsets are ``end``. ``consumer`` must come from
    `make_batch_consumer` or `make_reader`. It is left without assigned partitions, even if reading fails or the
    generator is closed. ``options``: see `make_batch_reader`. ``check`` is called before each read; it may raise an
    exception to stop reading. Raises KafkaException on an error, or if nothing arrives for `TIMEOUT_S`.
    """
    vector = dict(begin)
    topics = [topic for topic, at in begin.items() if at < end[topic]]
    with (
        closing(make_batch_reader(consumer, topics, at_once, native=options.native, keyed=options.keyed)) as reader,
        _unassigned_on_error(consumer),
    ):
        for topic in topics:
            reader.add(topic, unit)
        consumer.assign([TopicPartition(topic, unit, begin[topic]) for topic in topics])
        deadline_s = clock.monotonic_s() + TIMEOUT_S
        while missing := {topic: end[topic] - vector[topic] for topic in topics if vector[topic] < end[topic]}:
            check()
            count = sum(missing.values())
            parts, met, errors = reader.read(min(count, at_once), _MANY_WAIT_S if count > _MANY else READ_WAIT_S)
            for error, partition, _ in errors:
                if not is_passing(error, partition):
                    raise KafkaException(error)
            found = {topic: part for topic, part in parts.get(unit, {}).items() if topic in missing}
            reached = {topic: part.last + 1 for topic, part in found.items()}
            for topic, position in met.get(unit, {}).items():
                reached[topic] = max(reached.get(topic, 0), position)
            before = dict(vector)
            vector |= {topic: min(max(at, vector[topic]), end[topic]) for topic, at in reached.items()}
            if through := [TopicPartition(topic, unit) for topic in missing if vector[topic] == end[topic]]:
                # These logs have been read to the end; stop fetching them while the others are read.
                consumer.incremental_unassign(through)
                for place in through:
                    reader.remove(place.topic, unit)
            if vector != before:
                wanted = {
                    topic: part.part(0, int(part.offset.searchsorted(end[topic]))) for topic, part in found.items()
                }
                yield {topic: part for topic, part in wanted.items() if len(part)}, dict(vector)
                # Restart the timeout here, because the caller may have taken a long time to process the part.
                deadline_s = clock.monotonic_s() + TIMEOUT_S
            elif clock.monotonic_s() > deadline_s:
                raise timed_out(
                    f"unit {unit}: no message arrived for {TIMEOUT_S:.0f} s while reading up to {offsets_as_text(end)}"
                )


@contextmanager
def _unassigned_on_error(consumer: Consumer) -> Iterator[None]:
    """Stop the consumer from fetching if reading ends early, because it may sit unused for a long time."""
    try:
        yield
    except BaseException:
        consumer.unassign()
        raise
