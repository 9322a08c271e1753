"""The log of one partition in memory: offsets with gaps, transactions, control records, a last stable offset.

The clients of `memory_clients` read it through `MemoryKafka`, which has the topics and transactional ids. ``archive``
keeps the records that retention and compaction remove, so that a checker sees everything that was written.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

Headers = list[tuple[str, bytes | None]]
"""The headers of a record."""

OPEN: Final = "open"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"


@dataclass(eq=False)
class Transaction:
    """A producer's transaction. The coordinator decides its outcome; each partition gets the marker some time later.

    ``epoch``: the epoch of its records or, once it is decided, that of its markers, which may be newer.
    """

    producer: int
    epoch: int
    begun_s: float
    state: str = OPEN
    logs: list[Log] = field(default_factory=list)
    """The logs that contain its records but not yet its marker."""
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """Consumer offsets by group and partition. They become visible with the commit."""
    notes: dict[str, dict[tuple[str, int], str]] = field(default_factory=dict)
    """The metadata of these offsets."""


@dataclass(slots=True)
class Entry:
    """A record or, if ``is_control``, a transaction marker. Markers have offsets but never reach a consumer."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    transaction: Transaction | None = None
    is_control: bool = False
    headers: Headers | None = None

    @property
    def is_committed(self) -> bool:
        """Whether a read-committed consumer gets the record."""
        return not self.is_control and (self.transaction is None or self.transaction.state == COMMITTED)


class Log:
    """The log of a partition."""

    def __init__(self) -> None:
        self.low = 0
        self.end = 0
        self.entries: list[Entry] = []
        self.archive: list[Entry] = []
        self.left_open: list[tuple[Transaction, list[Entry]]] = []
        """The transactions of which this partition has never got the marker, as decided, and their records here."""
        self.epochs: dict[int, int] = {}
        """The newest epoch of each producer that has written a record or a marker to this partition."""
        self._first_open: dict[Transaction, int] = {}

    @property
    def stable_end(self) -> int:
        """The last stable offset: that of the first record of the oldest open transaction, or the end of the log."""
        return min(self._first_open.values(), default=self.end)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        transaction: Transaction | None,
        headers: Headers | None = None,
    ) -> int:
        """Append a record. Return its offset."""
        if transaction is not None and transaction not in self._first_open:
            self._first_open[transaction] = self.end
            transaction.logs.append(self)
            self.epochs[transaction.producer] = transaction.epoch
        return self._add(Entry(self.end, time_ms, key, value, transaction, headers=headers))

    def write_marker(self, transaction: Transaction, time_ms: int) -> None:
        """Write the marker of a decided transaction. It also ends all other open transactions of the producer here.

        A partition distinguishes producers, not their transactions.
        """
        del self._first_open[transaction]
        self.epochs[transaction.producer] = transaction.epoch
        for left in [known for known in self._first_open if known.producer == transaction.producer >= 0]:
            del self._first_open[left]
            for entry in self.archive:
                entry.transaction = transaction if entry.transaction is left else entry.transaction
        transaction.logs.remove(self)
        self._add(Entry(self.end, time_ms, None, None, transaction, is_control=True))

    def leave_open(self, transaction: Transaction) -> None:
        """Leave a transaction open in this partition, as if its marker were never written."""
        left = Transaction(transaction.producer, transaction.epoch, transaction.begun_s, logs=[self])
        self._first_open[left] = self._first_open.pop(transaction)
        transaction.logs.remove(self)
        records = [entry for entry in self.archive if entry.transaction is transaction]
        self.left_open.append((transaction, records))
        for entry in records:
            entry.transaction = left

    def read(self, position: int, count_max: int, *, committed: bool) -> tuple[list[Entry], int]:
        """Return up to ``count_max`` records starting at ``position``, and the next position to read from."""
        end = self.stable_end if committed else self.end
        found: list[Entry] = []
        for at in range(self._index(position), len(self.entries)):
            entry = self.entries[at]
            if entry.offset >= end:
                break
            if entry.is_committed or not (committed or entry.is_control):
                if len(found) == count_max:
                    return found, entry.offset
                found.append(entry)
        return found, max(position, end)

    def remove_before(self, offset: int) -> None:
        """Remove the records below ``offset``, as retention or a deletion by an operator does."""
        self.low = max(self.low, min(offset, self.end))
        del self.entries[: self._index(self.low)]

    def compact(self, until: int) -> None:
        """Keep only the newest committed value of each key below ``until``, and no tombstones. Offsets are kept."""
        until = min(until, self.stable_end)
        newest = {entry.key: entry.offset for entry in self.entries if entry.is_committed and entry.offset < until}
        self.entries = [
            entry
            for entry in self.entries
            if entry.offset >= until
            or (entry.is_committed and newest[entry.key] == entry.offset and entry.value is not None)
        ]

    def _index(self, offset: int) -> int:
        return bisect_left(self.entries, offset, key=lambda entry: entry.offset)

    def _add(self, entry: Entry) -> int:
        self.entries.append(entry)
        self.archive.append(entry)
        self.end += 1
        return entry.offset
