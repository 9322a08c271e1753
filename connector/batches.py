"""Puts the records of many events into one message for each partition, as Arrow.

The module is pure: it takes records and returns messages. All records of an event go into the same message, so the
event is confirmed with it, unless they are too large for one. The module is imported only if `topics.data_format` is
``arrow``: pyarrow is an extra.
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
"""A message with this many records is complete. The last event may add up to `broker.wire.records.QUANTITIES_MAX` more,
because an event is not divided; the sum of both is below what a message may hold."""

SIZE_BYTES_MAX: Final = 512 * 1024
"""About the largest size of a message, which is half of what Kafka accepts by default."""

_NUMBERS_BYTES: Final = 28
"""Bytes of a record besides its names: the time, the result, and the indices of its names."""


@dataclass
class _Waiting:
    """The records of one partition that are not in a message yet. A message with ``key`` goes to this partition."""

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
        """Divide the records of an event into parts that fit into a message each. Usually there is only one."""
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
        """Add a part of an event (see `divide`). It goes into one message."""
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
        """Return the messages with all records added since the last call, each with the tickets of its events."""
        found = self._complete + [self._message(waiting) for waiting in self._waiting.values()]
        self._waiting, self._complete = {}, []
        return found

    @staticmethod
    def size_of(records: Sequence[Record]) -> int:
        """Return an estimate of the number of bytes that records of one event take; there is at least one."""
        shared = len(records[0].thing.encode()) + len(records[0].id.encode()) + _NUMBERS_BYTES
        return shared * len(records) + sum(len(one.quantity.encode()) for one in records)

    def _message(self, waiting: _Waiting) -> Outgoing[Tickets]:
        value = encode_records(waiting.records, waiting.times_ns, self._time_unit)
        return Outgoing(waiting.key, value, tuple(waiting.tickets))
