"""Reads the end of a partition backwards, in parts, so that reading can stop once enough has been found."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from joiner.runtime.kafka.clients import make_reader, read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Consumer, Message

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

MESSAGES_MAX: Final = 20_000
BYTES_MAX: Final = 8 * 1024 * 1024
"""How much is read from a partition at most, unless a caller sets other limits."""

_FIRST: Final = 500
_FIRST_OF_MANY: Final = 4
"""How many offsets the first part has. If messages hold many records, it has fewer."""

_GROWTH: Final = 4


def make_tail_reader(settings: JoinerSettings) -> Consumer:
    """Create a consumer for `Tail` that prefetches about as much as is read at most."""
    return make_reader(settings.kafka, settings.application.name, queued_max_messages_kbytes=BYTES_MAX // 1024)


class Limits(NamedTuple):
    """How much is read from a partition at most: the number of offsets, and the size of the messages in bytes.

    The last message may exceed the size.
    """

    messages: int
    size: int


class Tail:
    """The end of a partition, from the newest messages backwards. Use one object for one pass."""

    def __init__(
        self,
        consumer: Consumer,
        clock: Clock,
        place: tuple[str, int],
        span: tuple[int, int],
        *,
        has_many: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """``place``: the topic and the partition. ``span``: the offsets that may be read, the end excluded.

        ``has_many``: whether a message holds many records. ``limits``: by default `MESSAGES_MAX` and `BYTES_MAX`.
        """
        self._consumer, self._clock, self._place = consumer, clock, place
        self._low, self.end = span
        self.begin = self.end
        """The offset down to which the partition has been read."""
        self._step = _FIRST_OF_MANY if has_many else _FIRST
        self._bytes = 0
        self._limits = limits or Limits(MESSAGES_MAX, BYTES_MAX)

    @property
    def is_whole(self) -> bool:
        """Whether everything has been read."""
        return self.begin <= self._low

    def parts(self, check: Callable[[], None]) -> Iterator[list[Message]]:
        """Yield the messages in parts, newest part first, each in offset order.

        Stop at the limits, and call ``check`` before each part and for each message. Raises KafkaException.
        """
        while not self.is_whole and (room := self._room()) > 0:
            check()
            before = self._bytes
            start = max(self._low, self.begin - room)
            part = self._read(start, check)
            yield part
            if part and self.begin > start:
                return  # the byte limit was reached within the part
            read = max(1, (self._bytes - before) // max(1, len(part)))
            # Earlier messages are probably about as large as these.
            self._step = max(1, min(self._step * _GROWTH, (self._limits.size - self._bytes) // read))

    def _room(self) -> int:
        """Return how many offsets to read next."""
        limits = self._limits
        return min(self._step, limits.messages - (self.end - self.begin)) if self._bytes < limits.size else 0

    def _read(self, start: int, check: Callable[[], None]) -> list[Message]:
        """Read the messages from ``start`` up to the part read before. Leave out the oldest if they are too large."""
        found: deque[Message] = deque()
        size, topic, partition = 0, *self._place
        first = start
        for message in read_to_end(self._consumer, self._clock, topic, partition, start, self.begin):
            check()
            found.append(message)
            size += _size(message)
            while size > self._limits.size - self._bytes and len(found) > 1:
                size -= _size(found.popleft())
                first = found[0].offset() or 0
        self._bytes += size
        self.begin = first
        return list(found)


def _size(message: Message) -> int:
    return len(message.value() or b"") + len(message.key() or b"")
