"""Splits the result of a poll that holds too many records. Even a small message may hold many if it is compressed."""

from __future__ import annotations

from broker.wire.arrow.limits import check_limits
from broker.wire.records import Unreadable
from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.task.decoding.messages import Messages


def split(read: Read, records_max: int) -> tuple[Read, Read]:
    """Split the result of a poll into a first part, with about ``records_max`` records, and the rest.

    The first part contains at least one message if there are any, and only its last message may exceed the limit. The
    end of a log is kept with the last messages of its topic. All errors are in the first part.
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
    """Return how many messages to take to get about ``left`` records, and how many records are still missing then."""
    data, count = messages.value.data.data, 0
    spans = zip(messages.value.start.tolist(), messages.value.end.tolist(), strict=True)
    while left > 0 and count < len(messages):
        begin, end = next(spans)
        left -= _records_in(data[begin:end])
        count += 1
    return count, left


def _records_in(value: memoryview) -> int:
    try:
        # The decoder checks the message again, because not every runner splits its input. A check takes 28 µs for 1,000
        # records; decoding them takes five times as long, and joining them longer still.
        return max(1, check_limits(value))
    except Unreadable:
        # A watermark, or a message that becomes a dead letter.
        return 1
