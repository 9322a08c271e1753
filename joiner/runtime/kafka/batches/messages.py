"""Batches of the input: the messages that a consumer returned, grouped by unit and topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from confluent_kafka import KafkaError, Message

from broker.kafka.native.reader import Event, Fetched
from joiner.runtime.kafka.clients import EOF_CODE
from joiner.runtime.task.decoding.messages import Messages


class Read(NamedTuple):
    """The result of polling a consumer once.

    ``batches``: the messages, by unit and topic. ``ends``: the end offset of each log that was read to its end, by unit
    and topic. ``errors``: each error with its partition and topic (None if it names none).
    """

    batches: dict[int, dict[str, Messages]]
    ends: dict[int, dict[str, int]]
    errors: list[tuple[KafkaError, int | None, str | None]]


def messages_of(messages: Sequence[Message], *, with_keys: bool = False) -> Messages:
    """Convert the messages of one partition to columns. There must be at least one, and none may be an error event.

    The loops are kept minimal because they run for every record.
    """
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    has_gaps = last - first != len(messages) - 1
    return Messages.of(
        [message.offset() or 0 for message in messages] if has_gaps else range(first, last + 1),
        [message.timestamp()[1] for message in messages],
        [message.value() for message in messages],
        [message.key() for message in messages] if with_keys else None,
    )


def sort_columns(fetched: Iterable[Fetched], events: Iterable[Event]) -> Read:
    """Group the messages and events from a native reader by unit and topic."""
    read = Read({}, {}, [])
    for topic, unit, offset, append_ms, value, is_null, key in fetched:
        read.batches.setdefault(unit, {})[topic] = Messages(offset, append_ms, value, is_null, key)
    for error, topic, unit, end in events:
        if error.code() == EOF_CODE:
            read.ends.setdefault(unit, {})[topic] = end
        else:
            read.errors.append((error, unit, topic))
    return read


def sort_messages(messages: Sequence[Message], topics: Sequence[str], keyed: Collection[str] = ()) -> Read:
    """Group the messages from a consumer by unit and topic.

    ``topics``: the topics that the consumer reads. ``keyed``: those of them whose keys are needed.
    """
    ends: dict[int, dict[str, int]] = {}
    errors: list[tuple[KafkaError, int | None, str | None]] = []
    if any(faults := [message.error() for message in messages]):
        for message, error in zip(messages, faults, strict=True):
            if error is not None and error.code() == EOF_CODE:
                ends.setdefault(int(message.partition() or 0), {})[str(message.topic())] = int(message.offset() or 0)
            elif error is not None:
                errors.append((error, message.partition(), message.topic()))
        messages = [message for message, error in zip(messages, faults, strict=True) if error is None]
    # Handle messages in runs of the same partition and avoid `Message.topic`, which creates a new string on each call.
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
        batches.setdefault(unit, {})[topic] = messages_of(batch, with_keys=topic in keyed)
    return Read(batches, ends, errors)
