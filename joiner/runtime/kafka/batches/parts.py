"""Divides what was read if messages hold many records: a small compressed message may hold as many as a large one."""

from __future__ import annotations

from broker.wire.arrow.limits import check_limits
from broker.wire.records import Unreadable
from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.task.decode import Messages


def split(read: Read, records_max: int) -> tuple[Read, Read]:
    """Return the first part of what was read, with about ``records_max`` records, and the rest.

    The first part has at least one message if there is one, and at most one that exceeds the limit. A log end comes
    after all messages of its topic; errors are in the first part.
    """
    part, rest, left = Read({}, {}, read.errors), Read({}, {}, []), records_max
    for unit, topics in read.batches.items():
        for topic, messages in topics.items():
            count, left = _fitting(messages, left)
            for to, some in ((part, messages.part(0, count)), (rest, messages.part(count, len(messages)))):
                if len(some):
                    to.batches.setdefault(unit, {})[topic] = some
    for unit, ends in read.ends.items():
        for topic, end in ends.items():
            to = rest if topic in rest.batches.get(unit, {}) else part
            to.ends.setdefault(unit, {})[topic] = end
    return part, rest


def _fitting(messages: Messages, left: int) -> tuple[int, int]:
    """Return how many messages to take until ``left`` records are reached, and how many records are left after them."""
    data, count = messages.value.data.data, 0
    spans = zip(messages.value.start.tolist(), messages.value.end.tolist(), strict=True)
    while left > 0 and count < len(messages):
        begin, end = next(spans)
        left -= _records_in(data[begin:end])
        count += 1
    return count, left


def _records_in(value: memoryview) -> int:
    try:
        return max(1, check_limits(value))
    except Unreadable:
        # A watermark, or a dead letter.
        return 1
