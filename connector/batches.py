"""Packs the records of many events into Arrow messages, normally one per partition.

The module is pure: it takes records and returns messages. All records of an event go into the same message, so one
confirmation from Kafka covers the whole event. Only an event that is too large for one message is split. The module is
imported only if `topics.data_format` is ``arrow``, because pyarrow is an optional dependency.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.kafka.producer import Outgoing
from broker.partitioner import partition_of
from broker.wire.arrow.rows import encode_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.wire.records import Record
    from connector.acknowledgement import Ticket, Tickets

RECORDS_MAX: Final = 10_000
"""A message is closed once it has this many records. Because the last event is not split, the message may end up with
up to `broker.wire.records.QUANTITIES_MAX` more. This is still below the maximum number of rows in a message."""

SIZE_BYTES_MAX: Final = 512 * 1024
"""Approximate maximum size of a message: half of Kafka's default limit."""

_NUMBERS_BYTES: Final = 28
"""Size of a row without its strings: the time, the value, and the dictionary index of each string."""


@dataclass
class _Waiting:
    """The records for one partition that are not in a message yet. Kafka maps ``key`` to this partition."""

    key: bytes
    records: list[Record] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    size_bytes: int = 0


class RecordBatches:
    """Collects the records of events, in order."""

    def __init__(self, partitions: int, time_unit: str) -> None:
        self._partitions, self._time_unit = partitions, time_unit
        self._waiting: dict[int, _Waiting] = {}
        self._complete: list[Outgoing[Tickets]] = []

    def divide(self, records: Sequence[Record]) -> list[Sequence[Record]]:
        """Split the records of an event into parts, each small enough for one message. Usually one part is enough."""
        if self.size_of(records) <= SIZE_BYTES_MAX:
            return [records]
        parts, size_bytes = [[records[0]]], self.size_of(records[:1])
        for record in records[1:]:
            more = self.size_of([record])
            if size_bytes + more > SIZE_BYTES_MAX:
                parts.append([])
                size_bytes = 0
            parts[-1].append(record)
            size_bytes += more
        return [*parts]

    def add(self, thing: str, time_ns: int, records: Sequence[Record], ticket: Ticket) -> None:
        """Add one part of an event, as returned by `divide`. All of its records go into the same message."""
        number, size_bytes = partition_of(thing.encode(), self._partitions), self.size_of(records)
        waiting = self._waiting.get(number)
        if waiting is not None and waiting.size_bytes + size_bytes > SIZE_BYTES_MAX:
            self._complete.append(self._message(self._waiting.pop(number)))
            waiting = None
        if waiting is None:
            waiting = self._waiting[number] = _Waiting(thing.encode())
        waiting.records += records
        waiting.times_ns += [time_ns] * len(records)
        waiting.tickets.append(ticket)
        waiting.size_bytes += size_bytes
        if len(waiting.records) >= RECORDS_MAX:
            self._complete.append(self._message(self._waiting.pop(number)))

    def take(self) -> list[Outgoing[Tickets]]:
        """Return messages with all records added since the last call, each with the tickets of the events in it."""
        found = self._complete + [self._message(waiting) for waiting in self._waiting.values()]
        self._waiting, self._complete = {}, []
        return found

    @staticmethod
    def size_of(records: Sequence[Record]) -> int:
        """Return the approximate size in bytes of one event's records. ``records`` must not be empty."""
        shared = len(records[0].thing.encode()) + len(records[0].id.encode()) + _NUMBERS_BYTES
        return shared * len(records) + sum(len(one.quantity.encode()) for one in records)

    def _message(self, waiting: _Waiting) -> Outgoing[Tickets]:
        value = encode_records(waiting.records, waiting.times_ns, self._time_unit)
        return Outgoing(waiting.key, value, tuple(waiting.tickets))
