"""What a transaction of ``joiner merge`` stores about each partition, and how its memory is rebuilt from that.

The record for partition p of an output is in partition p of the state topic, with the merged topic as its key. It
contains no ids. They are read again from the merged topic, from the oldest that is remembered on. The header
``lsb-replica`` of each message there names the replica that was first. Which of them another replica has written since
its last start record is read again from its topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message

from broker.kafka.replicas import replica_of
from joiner.cli.merging.serial_index import SerialIndex
from joiner.library.merging.inputs import Place, input_ends
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import ReplicaUnion
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import known_range, log_range, read_to_end

Item = TypeVar("Item")

_CHECK_EVERY: Final = 1_000
_INDEXED_EVERY: Final = 1_000
"""After how many messages an offset is noted while a merged topic is read again."""

FORMAT_VERSION: Final = 1

BEGIN_AGAIN: Final = (
    "To begin again, delete the merged topics and the state topic of merging; readers may then get results a second "
    "time (see replicas.md)"
)


class Progress(msgspec.Struct, frozen=True):
    """How far one partition of an output was merged.

    ``positions``, ``topics``: the offset after the last message that was decided about, and the id, of each replica's
    topic. ``starts``: the offset of the last start record before that, if there is one. ``union``:
    `ReplicaUnion.summary`. ``count``: how many messages were merged. They are numbered from 0; these are the serials.
    ``oldest``: an offset in the merged topic and the serial of the first message from there on. All ids that are
    remembered are after that. None if there are none. ``merged``: the id of the merged topic. ``end``: the offset after
    the last message in it, or 0. ``before``: what was stored before the last transaction with messages, without its own
    ``before``.
    """

    positions: dict[str, int]
    topics: dict[str, str]
    union: dict[str, Any]
    count: int
    oldest: tuple[int, int] | None
    starts: dict[str, int]
    merged: str
    end: int
    before: Progress | None = None
    format: int = FORMAT_VERSION


_log = logging.getLogger(__name__)

_decoder: Final = msgspec.json.Decoder(Progress)
_encoder: Final = msgspec.json.Encoder()


def encode_progress(progress: Progress) -> bytes:
    """Return the value of the record."""
    return _encoder.encode(progress)


class Stored(NamedTuple):
    """What is stored about a partition of a merged topic.

    ``committed``: the newest record that was committed, if there is one. ``tried``: those after it, in order, of
    transactions that were aborted.
    """

    committed: Progress | None
    tried: list[Progress]


def read_progress(log: Consumer, everything: Consumer, clock: Clock, topic: str, partition: int) -> dict[str, Stored]:
    """Return what is stored in a partition of the state topic, by merged topic.

    ``log``, ``everything``: a read-committed and a read-uncommitted consumer (see `read_to_end`). Raises
    KafkaException, and `MergeError` if a record cannot be read.
    """
    committed: dict[str, tuple[int, Progress]] = {}
    for merged, offset, progress in _records(log, clock, topic, partition, 0):
        committed[merged] = offset, progress
    found = {merged: Stored(progress, []) for merged, (_, progress) in committed.items()}
    # What was tried for a merged topic without a committed record may be anywhere.
    begin = min((offset for offset, _ in committed.values()), default=0)
    for merged, offset, progress in _records(everything, clock, topic, partition, begin):
        if merged not in committed or offset > committed[merged][0]:
            found.setdefault(merged, Stored(None, [])).tried.append(progress)
    return found


def _records(
    consumer: Consumer, clock: Clock, topic: str, partition: int, begin: int
) -> Iterator[tuple[str, int, Progress]]:
    """Yield the merged topic, the offset and the content of each record from an offset on."""
    start, end = known_range(consumer, clock, topic, partition)
    start = max(start, begin)
    for message in read_to_end(consumer, clock, topic, partition, start, end) if end > start else ():
        if message.value() is None:
            # A record that fences others.
            continue
        try:
            progress = _decoder.decode(message.value() or b"")
        except msgspec.DecodeError as error:
            problem = f"{topic} partition {partition} offset {message.offset()} cannot be read: {error}. {BEGIN_AGAIN}"
            raise MergeError(problem) from error
        if progress.format > FORMAT_VERSION:
            problem = f"{topic} was written by a later release (format {progress.format}): use that release"
            raise MergeError(problem)
        yield (message.key() or b"").decode(), message.offset() or 0, progress


def true_progress(stored: Stored, consumer: Consumer, clock: Clock, topic: str, partition: int) -> Progress | None:
    """Return the progress of which the merged topic has all messages and no others, or None if it is the beginning.

    Kafka may fail to end a transaction in some partitions (see `joiner.runtime.ownership.dangling`). Then it is aborted
    there, although it was committed elsewhere. Each output is merged by itself, so that it does not matter to it how a
    transaction has ended in other partitions: what counts is whether the messages are in the merged topic. If they are,
    the record holds even if it was aborted, and if not, the one before it holds.

    ``consumer``: a read-committed one. No earlier transaction may be open. Raises KafkaException, and `MergeError` if
    no record fits.
    """
    committed = stored.committed
    if committed is None and not stored.tried:
        # The topic may be long, although nothing is known of it.
        return None
    low, end = known_range(consumer, clock, topic, partition)
    candidates: list[Progress | None] = [committed, *reversed(stored.tried)]
    if committed is not None and (committed.before is not None or low == 0):
        candidates.append(committed.before)
    ends = [one.end if one is not None else 0 for one in candidates]
    visible = _visible_end(consumer, clock, (topic, partition), max(low, min(ends) - 1), end)
    for progress, its_end in zip(candidates, ends, strict=True):
        # If nothing is visible, retention has deleted what precedes the beginning of the log.
        if visible == its_end or (visible is None and its_end <= low):
            if progress is not committed:
                _log.warning(
                    "%s partition %d: Kafka has not ended the transactions of merging correctly; repairing that",
                    topic,
                    partition,
                )
            return progress
    if committed is None:
        return None
    message = (
        f"{topic} partition {partition}: the last messages are not those that were merged last, so Kafka has lost "
        f"some, or another program has written there. {BEGIN_AGAIN}"
    )
    raise MergeError(message)


def _visible_end(consumer: Consumer, clock: Clock, place: Place, begin: int, end: int) -> int | None:
    """Return the offset after the last message that can be read in a range of offsets, or None if there is none."""
    last: int | None = None
    for message in read_to_end(consumer, clock, *place, begin, end) if begin < end else ():
        last = (message.offset() or 0) + 1
    return last


def restore(
    merged: MergedPartition,
    progress: Progress | None,
    written: Iterable[tuple[int, str | bytes]],
    consumer: Consumer,
    clock: Clock,
    topic: str,
    partition: int,
    check: Callable[[], None],
) -> tuple[int, SerialIndex]:
    """Continue a partition of a merged topic. Return its end, and where messages that are still needed are.

    ``progress``: None if nothing is stored. ``written``: see `written_since`; it is only iterated over if it is needed.
    ``check`` is called often, and may raise what it likes. Raises KafkaException, and `MergeError` if the topic cannot
    be continued.
    """
    start, end = known_range(consumer, clock, topic, partition)
    index = SerialIndex()
    if progress is None:
        if next(read_to_end(consumer, clock, topic, partition, start, end), None) is not None:
            message = (
                f"{topic} partition {partition} has messages, but nothing says how far the replicas were merged, so "
                "results would be written a second time: delete the topic, or restore the state topic"
            )
            raise MergeError(message)
        index.add(0, end)
        return end, index
    union, place = merged.union, (topic, partition)
    ends = partial(input_ends, consumer, union, place)
    merged.count = progress.count
    try:
        union.restore(progress.union, ends)
    except ValueError as error:
        message = f"{topic} partition {partition}: {error}: set application.replicas back until another one is complete"
        raise MergeError(message) from error
    at, serial = progress.oldest or (end, progress.count)

    def numbered(first: int) -> Iterator[tuple[int, Message]]:
        messages = read_to_end(consumer, clock, topic, partition, at, end) if at < end else iter(())
        return enumerate((one for one in _checking(messages, check) if replica_of(one.headers()) is not None), first)

    if at < start:
        # Which number the first message has is only known from the end.
        at = start
        serial = progress.count - sum(1 for _ in numbered(0))
        memory = progress.union["memory"]
        if min(first for _, first, _ in (*memory["untagged"], *memory["tagged"])) < serial:
            _give_up(union, progress, topic, partition, at, serial)
    index.add(serial, at)
    try:
        union.recall(progress.union, delivered(numbered(serial), merged, index), _checking(written, check), ends)
    except ValueError as error:
        message = f"{topic} partition {partition}: {error}: run `joiner merge` with a larger --remembered-max"
        raise MergeError(message) from error
    index.add(progress.count, end)
    return end, index


def _checking(items: Iterable[Item], check: Callable[[], None]) -> Iterator[Item]:
    """Yield the items, and call ``check`` in between."""
    for number, item in enumerate(items):
        if number % _CHECK_EVERY == 0:
            check()
        yield item


def _give_up(union: ReplicaUnion, progress: Progress, topic: str, partition: int, start: int, serial: int) -> None:
    """Do without the ids of messages that retention has deleted.

    Refusing to go on would be worse: an operator could only begin again, which repeats everything.
    """
    is_certain = union.give_up(progress.union, serial)
    _log.warning(
        "%s partition %d: retention has deleted messages before offset %d, which say what was merged already; %s",
        topic,
        partition,
        start,
        "replicas that were behind since are ignored until they have passed the others"
        if is_certain
        else "if the replicas have yet to write some of these results, they are merged again",
    )


def written_since(
    merged: MergedPartition,
    progress: Progress,
    replicas: Mapping[str, int],
    consumer: Consumer,
    clock: Clock,
    unit: int,
) -> Iterator[tuple[int, str | bytes]]:
    """Yield the replica and the id of what was written between the last start records and the positions.

    ``replicas``: the number of the replica, by its topic.
    """
    for topic, replica in replicas.items():
        end = progress.positions.get(topic, OFFSET_BEGINNING)
        start, _ = log_range(consumer, topic, unit)
        start = max(start, progress.starts.get(topic, end))
        for message in read_to_end(consumer, clock, topic, unit, start, end) if start < end else ():
            if (identity := merged.identity(message.value())) is not None:
                yield replica, identity


def delivered(
    messages: Iterator[tuple[int, Message]], merged: MergedPartition, index: SerialIndex
) -> Iterator[tuple[int, int, str | bytes]]:
    """Yield the serial, the replica and the id of each message that has an id, and note some of their offsets."""
    for serial, message in messages:
        if serial % _INDEXED_EVERY == 0:
            index.add(serial, message.offset() or 0)
        identity, number = merged.identity(message.value()), replica_of(message.headers())
        if identity is not None and number is not None:
            yield serial, number, identity
