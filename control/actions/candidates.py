"""Decides which dead letters' records can be put back: those that the joiner would accept now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.wire.records import Unreadable, Watermark, decode_data
from control.facts.dead_letters import describe, whole_value
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import KAFKA_TIMESTAMP
from joiner.runtime.registry import schemas_of
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
    if any(stream.time == KAFKA_TIMESTAMP for stream in settings.mapped_streams(content.topic)):
        return (
            f"its time would be that of its second arrival, because a stream of {content.topic} has {KAFKA_TIMESTAMP}"
        )
    given = whole_value(content) if value is None else value
    if given is None:
        return f"it contains only part of its record's {content.length} bytes: give a corrected value"
    try:
        thing = check_record(settings, content.topic, content.partition, given, at_ms)
    except Unreadable as error:
        if value is not None:
            return f"the corrected value would be rejected: {error}"
        return f"the record would be rejected again: {error}; fix the cause, or give a corrected value"
    # The joiner's dead letters have no key. A record's key is its thing.
    return Candidate(content.topic, content.partition, message.key() or thing.encode(), given, content.id)


def check_record(settings: JoinerSettings, topic: str, partition: int, value: bytes, at_ms: int) -> str:
    """Return the thing of a record that the joiner would accept if it arrived at ``at_ms`` (since the epoch).

    Raises `Unreadable`, with the reason, if the joiner would reject or ignore it, and `UnitStopped` if its schema is
    not available.
    """
    if streams := settings.mapped_streams(topic):
        mapped = MappedTopic(streams, settings.events.time_unit, schemas_of(settings))
        things = [one.record.thing for one in mapped.read(value, 0, at_ms)]
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
    found = decoder.decode(Messages.of([0], [at_ms], [value]))
    if found.rejected:
        raise Unreadable(found.rejected[0].reason)
    if found.not_selected:
        raise Unreadable(f"no join and no align reads the quantity {quantity!r} from {topic}")
    return thing
