"""Collects the effects of a batch (results, late and unmatched records, dead letters) and encodes their messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.wire.columns import StringColumn
from broker.wire.records import Late, Rejected, Unmatched, encode_lines
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.function_failures import Failures, add_up

if TYPE_CHECKING:
    from broker.settings import TopicSettings

Outgoing = dict[str, Batch]
"""Messages by topic."""


@dataclass
class Effects:
    """The effects of a batch, written in one transaction."""

    records: int = 0
    """The number of records, watermarks and unreadable messages read."""
    pairs: int = 0
    """The number of results. A message may hold many."""
    joined_parts: list[Batch] = field(default_factory=list)
    """The encoded results and watermarks, in parts that are concatenated when they are read."""
    late: list[Late] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)
    failed_pairs: dict[str, Failures] = field(default_factory=dict)
    """The pairs and rows for which a function failed, by join or align. ``rejected`` contains their dead letters."""
    watermarks: int = 0
    """The number of watermarks in ``joined_parts``."""
    appended_ms: Counter[int] = field(default_factory=Counter)
    """The number of results by the append time (ms) that latency is measured from; empty if there are no metrics."""

    @property
    def joined(self) -> Batch:
        """All results and watermarks as one batch."""
        if len(self.joined_parts) != 1:
            self.joined_parts = [Batch.concat(self.joined_parts)]
        return self.joined_parts[0]

    @property
    def outcomes(self) -> int:
        """The number of results plus the number of pairs and rows for which a function failed."""
        return self.pairs + sum(failures.count for failures in self.failed_pairs.values())

    def add(self, more: Effects) -> None:
        """Add the effects of the next batch."""
        self.records += more.records
        self.pairs += more.pairs
        self.joined_parts += more.joined_parts
        self.watermarks += more.watermarks
        self.late += more.late
        self.rejected += more.rejected
        self.unmatched += more.unmatched
        add_up(self.failed_pairs, more.failed_pairs)
        self.appended_ms += more.appended_ms

    def add_watermarks(self, watermarks: Batch) -> None:
        """Add watermarks taken from the state after these effects. Do not add effects of a later batch afterwards."""
        if len(watermarks):
            self.joined_parts.append(watermarks)
            self.watermarks += len(watermarks)

    def messages(self, topics: TopicSettings) -> Outgoing:
        """Return the messages to write, by topic."""
        found: Outgoing = {topics.out: self.joined} if len(self.joined) else {}
        for topic, records in ((topics.late, self.late), (topics.unmatched, self.unmatched)):
            if records:
                keys = StringColumn.of([one.record.thing.encode() for one in records])
                found[topic] = Batch(keys, StringColumn.of_lines(encode_lines(records)))
        if self.rejected:
            found[topics.rejected] = Batch(None, StringColumn.of_lines(encode_lines(self.rejected)))
        return found
