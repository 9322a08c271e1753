"""Decides which dead letters' records can be put back: those that the joiner would accept now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.partitioner import partition_of
from broker.wire.records import Unreadable, Watermark, decode_data
from control.facts.dead_letters import describe, whole_value
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP
from joiner.runtime.kafka.batches.registry import schemas_of
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages

if TYPE_CHECKING:
    from confluent_kafka import Message

    from joiner.runtime.settings import JoinerSettings


class Candidate(NamedTuple):
    """A record that can be put back, unless that was done before. ``id``: its dead letter's id."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    id: str


def candidate_of(settings: JoinerSettings, message: Message, value: bytes | None, at_ms: int) -> Candidate | str:
    """Return the record to put back for a message in the dead-letter topic, or why it cannot be put back.

    ``value``: the corrected value, or None for the original one. ``at_ms``: the current time, since the epoch.
    """
    letter, content = describe(settings, message.partition() or 0, message.offset() or 0, 0, message.value())
    if content is None or letter.refusal:
        return letter.refusal
    if refusal := _what_is_lost(settings, content.topic, message.key()):
        return refusal
    given = whole_value(content) if value is None else value
    if given is None:
        return f"it contains only part of its record's {content.length} bytes: give a corrected value"
    partition = _partition_for(settings, content.topic, given, message.key(), content.partition)
    try:
        thing = check_record(settings, content.topic, partition, given, at_ms, message.key())
    except Unreadable as error:
        if value is not None:
            return f"the corrected value would be rejected: {error}"
        return f"the record would be rejected again: {error}; fix the cause, or give a corrected value"
    # The joiner's dead letters have no key. A record's key is its thing.
    return Candidate(content.topic, partition, message.key() or thing.encode(), given, content.id)


def _partition_for(settings: JoinerSettings, topic: str, value: bytes, key: bytes | None, before: int) -> int:
    """Return the partition in which a record belongs. ``before``: the one that it was in.

    In a repartition topic, a message whose key could not be read is in any partition.
    """
    if topic not in settings.repartitioned.values():
        return before
    mapping = MappedTopic(settings.mapped_streams(topic), settings.events.time_unit, schemas_of(settings))
    thing = mapping.thing_of(value, key)
    return before if thing is None else partition_of(thing.encode(), settings.topics.partitions)


def _what_is_lost(settings: JoinerSettings, topic: str, key: bytes | None) -> str:
    """Return which part of a message that its dead letter does not contain is needed, or an empty string."""
    if any(stream.time == KAFKA_TIMESTAMP for stream in settings.mapped_streams(topic)):
        return f"its time would be that of its second arrival, because a stream of {topic} has {KAFKA_TIMESTAMP}"
    if key is None and topic in settings.keyed_topics:
        return f"its key is not known: a stream of {topic} has {KAFKA_KEY}, and dead letters do not contain keys"
    return ""


def check_record(
    settings: JoinerSettings, topic: str, partition: int, value: bytes, at_ms: int, key: bytes | None = None
) -> str:
    """Return the thing of a record that the joiner would accept if it arrived at ``at_ms`` (since the epoch).

    ``key``: the message's key. Raises `Unreadable`, with the reason, if the joiner would reject or ignore it, and
    `UnitStopped` if its schema is not available.
    """
    if streams := settings.mapped_streams(topic):
        mapping = MappedTopic(streams, settings.events.time_unit, schemas_of(settings))
        things = [one.record.thing for one in mapping.read(value, 0, at_ms, key)]
        if not things:
            message = f"it belongs to none of the streams that are read from {topic}"
            raise Unreadable(message)
        thing, quantity = things[0], streams[0].name
    else:
        content, _ = decode_data(value, settings.events.time_unit)
        if isinstance(content, Watermark):
            raise Unreadable("it is a watermark, which a later one replaces")
        thing, quantity = content.thing, content.quantity
    keys = Keys(partition, settings.topics.partitions)
    decoder = make_decoder(settings, topic, partition, keys, schemas_of(settings))
    found = decoder.decode(Messages.of([0], [at_ms], [value], [key]))
    if found.rejected:
        raise Unreadable(found.rejected[0].reason)
    if found.not_selected:
        raise Unreadable(f"no join and no align reads the quantity {quantity!r} from {topic}")
    return thing
