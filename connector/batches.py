"""Puts the records of many events into one message for each partition, as Arrow.

The module is pure: it takes records and returns messages. All records of an event go into the same message, so the
event is confirmed with it. The module is imported only if `topics.data_format` is ``arrow``: pyarrow is an extra.
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
"""A message with this many records is complete. It may have up to `broker.wire.records.QUANTITIES_MAX` more, because an
event is not divided; the sum of both is below what a message may hold."""

SIZE_BYTES_MAX: Final = 512 * 1024
"""A message whose records take about this many bytes is complete."""

_NUMBERS_BYTES: Final = 24
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

    def add(self, thing: str, time_ns: int, records: Sequence[Record], ticket: Ticket) -> None:
        """Add the records of an event, which has at least one."""
        number = partition_of(thing.encode(), self._partitions)
        waiting = self._waiting.get(number)
        if waiting is None:
            waiting = self._waiting[number] = _Waiting(thing.encode())
        waiting.records += records
        waiting.times_ns += [time_ns] * len(records)
        waiting.tickets.append(ticket)
        waiting.size_bytes += self.size_of(records)
        if len(waiting.records) >= RECORDS_MAX or waiting.size_bytes >= SIZE_BYTES_MAX:
            self._complete.append(self._message(self._waiting.pop(number)))

    def take(self) -> list[Outgoing[Tickets]]:
        """Return the messages with all records added since the last call, each with the tickets of its events."""
        found = self._complete + [self._message(waiting) for waiting in self._waiting.values()]
        self._waiting, self._complete = {}, []
        return found

    @staticmethod
    def size_of(records: Sequence[Record]) -> int:
        """Return an estimate of the number of bytes that the records take."""
        # A character has up to four bytes; most have one.
        return sum(len(one.thing) + len(one.quantity) + len(one.id) + _NUMBERS_BYTES for one in records)

    def _message(self, waiting: _Waiting) -> Outgoing[Tickets]:
        value = encode_records(waiting.records, waiting.times_ns, self._time_unit)
        return Outgoing(waiting.key, value, tuple(waiting.tickets))
