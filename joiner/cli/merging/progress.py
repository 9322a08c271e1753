"""What a transaction of ``joiner merge`` stores about each partition, and how its memory is rebuilt from that.

The record for partition p of an output is in partition p of the state topic, with the merged topic as its key. It
contains no ids. They are read again from the merged topic, from the oldest that is remembered on. The header
``lsb-replica`` of each message there names the replica that was first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, Message

from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import known_end, log_range, read_to_end

REPLICA_HEADER: Final = "lsb-replica"

FORMAT_VERSION: Final = 1


class Progress(msgspec.Struct, frozen=True):
    """How far one partition of an output was merged.

    ``positions``, ``topics``: the offset after the last message that was decided about, and the id, of each replica's
    topic. ``union``: `ReplicaUnion.summary`. ``oldest``: the offset in the merged topic from which ids are remembered,
    or None.
    """

    positions: dict[str, int]
    topics: dict[str, str]
    union: dict[str, Any]
    oldest: int | None
    format: int = FORMAT_VERSION


_decoder: Final = msgspec.json.Decoder(Progress)
_encoder: Final = msgspec.json.Encoder()


def encode_progress(progress: Progress) -> bytes:
    """Return the value of the record."""
    return _encoder.encode(progress)


def read_progress(consumer: Consumer, clock: Clock, topic: str, partition: int) -> dict[str, Progress]:
    """Return what is stored in a partition of the state topic, by merged topic. ``consumer``: see `read_to_end`.

    Raises KafkaException, and `MergeError` if a record cannot be read.
    """
    end = known_end(consumer, clock, topic, partition)
    start, _ = log_range(consumer, topic, partition)
    found: dict[str, Progress] = {}
    for message in read_to_end(consumer, clock, topic, partition, start, end) if end > start else ():
        try:
            progress = _decoder.decode(message.value() or b"")
        except msgspec.DecodeError as error:
            problem = f"{topic} partition {partition} offset {message.offset()} cannot be read: {error}"
            raise MergeError(problem) from error
        if progress.format > FORMAT_VERSION:
            problem = f"{topic} was written by a later release (format {progress.format}): use that release"
            raise MergeError(problem)
        found[(message.key() or b"").decode()] = progress
    return found


def restore(
    merged: MergedPartition, progress: Progress | None, consumer: Consumer, clock: Clock, topic: str, partition: int
) -> int:
    """Continue a partition of a merged topic, and return its end. ``progress``: None if nothing is stored.

    Raises KafkaException, and `MergeError` if it cannot be continued.
    """
    end = known_end(consumer, clock, topic, partition)
    start, _ = log_range(consumer, topic, partition)
    if progress is None:
        if next(read_to_end(consumer, clock, topic, partition, start, end), None) is not None:
            message = (
                f"{topic} partition {partition} has messages, but nothing says how far the replicas were merged, so "
                "results would be written a second time: delete the topic, or restore the state topic"
            )
            raise MergeError(message)
        return end
    try:
        merged.union.restore(progress.union)
    except ValueError as error:
        message = f"{topic} partition {partition}: {error}: set application.replicas back until another one is complete"
        raise MergeError(message) from error
    if progress.oldest is not None and progress.oldest < end:
        if progress.oldest < start:
            message = (
                f"{topic} partition {partition}: retention has deleted messages from offset {progress.oldest} on, "
                "which say what was merged already: retain them for longer, delete the merged topics and their state "
                "topic, and merge again"
            )
            raise MergeError(message)
        messages = read_to_end(consumer, clock, topic, partition, progress.oldest, end)
        merged.union.recall(progress.union, delivered(messages, merged))
    return end


def delivered(messages: Iterator[Message], merged: MergedPartition) -> Iterator[tuple[int, int, str | bytes]]:
    """Yield the offset, the replica and the id of each message of a merged topic that has an id."""
    for message in messages:
        identity = merged.identity(message.value())
        number = _header(message)
        if identity is not None and number is not None:
            yield message.offset() or 0, number, identity


def _header(message: Message) -> int | None:
    headers = message.headers()
    found = dict(headers.items() if isinstance(headers, Mapping) else headers or ()).get(REPLICA_HEADER)
    return int(found) if isinstance(found, bytes) and found.isdigit() else None
