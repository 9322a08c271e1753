"""Sorting of what a consumer returned: the messages of each unit and topic, ends of logs, and errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from confluent_kafka import KafkaError, Message

from joiner.runtime.kafka.clients import EOF_CODE
from joiner.runtime.task.decode import Messages

_Error = tuple[KafkaError, int | None, str | None]
"""An error, its partition and its topic."""


def messages_of(messages: Sequence[Message]) -> Messages:
    """The columns of messages of one partition, none of which is an error event.

    The loops are minimal, as they run for every record.
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
    """Sort messages of ``topics``: by unit and topic the messages, and the ends of logs reached; and the errors."""
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
